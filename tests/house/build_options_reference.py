"""Writes docs/trtllm-build.md from the table of options (run this module with PYTHONPATH=build:.)."""

from pathlib import Path

from draftyard.rules.build_options import GENERAL, PLUGINS, Option
from draftyard.rules.build_refusals import FREE_OPTIONS, RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trtllm-build.md"
_HEAD = """# trtllm-build: options, refusals, sizes

<!-- Generated from rules/build_options.py and rules/build_refusals.py. To rewrite it:
PYTHONPATH=build:. python -m tests.house.build_options_reference -->

What `trtllm-build` of TensorRT-LLM 1.2.1 takes, as Draftyard knows it. Sizes, speculation and paths always follow from
the recipe and are given in full, so that no default of the builder decides anything; the options marked *free* may be
set under `trtllm_build` in a recipe. An option that the builder would change without a word is refused beforehand, and
after the build each stored field is compared with what was asked.

With a speculation mode the builder lengthens `max_seq_len` by `max_draft_len` (EAGLE: by `num_eagle_layers` more), and
raises `max_num_tokens` to `max_batch_size` x (`max_draft_len` + 1). Recipes therefore give `max_seq_len` without room
for drafts.
"""


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            _HEAD,
            "## General options\n",
            *_table(GENERAL),
            "\n## Plugins\n",
            *_table(PLUGINS),
            "\n## Refused before a process starts\n",
            "| refused | what to do |\n|---|---|",
            *(f"| {rule.message} | {rule.hint} |" for rule in RULES),
            "",
        ]
    )


def _table(options: tuple[Option, ...]) -> list[str]:
    rows = ["| option | values | default | free | changed silently when |", "|---|---|---|---|---|"]
    for option in options:
        values = ", ".join(f"`{choice}`" for choice in option.choices) or str(option.type)
        default = f"`{option.default}`" if option.default is not None else "none"
        free = "free" if option.name in FREE_OPTIONS else ""
        rows.append(f"| `--{option.name}` | {values} | {default} | {free} | {option.overridden} |")
    return rows


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
