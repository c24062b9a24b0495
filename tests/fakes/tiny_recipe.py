"""Writes a recipe for two tiny models beside it: plain, n-gram and draft-target decoding on the reference lane."""

from pathlib import Path

from tests.fakes.tiny_model import config_of, write_model

TEXT = """version: 1
name: tiny
target: {path: target}
speculators:
  - {kind: ngram, max_draft_len: 3}
  - {kind: draft_target, path: draft, max_draft_len: 2}
lanes: [reference]
gpus: [cpu]
precisions: [fp32]
limits: {max_batch_size: 2, max_input_len: 32, max_seq_len: 64, max_num_tokens: 64}
verify: {prompts: prompts, concurrency: [1, 2]}
"""


def write_recipe(root: Path, changes: tuple[tuple[str, str], ...] = ()) -> Path:
    """The recipe `root`/recipe.yaml, each change (old text, new text) applied; models are written once."""
    if not (root / "target").exists():
        write_model(root / "target")
        write_model(root / "draft", config_of(num_hidden_layers=1))
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = root / "recipe.yaml"
    path.write_text(text)
    return path
