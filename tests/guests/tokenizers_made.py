"""Small tokenizers of the kinds that models come with, made on the spot."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = [
    "The quick brown fox jumps over the lazy dog. Żółw and naïve café, Привет мир, 你好世界 🙂🙃 stop END now.",
    "def draft(tokens):\n    return tokens[:4]\n\n" * 4,
    "User: hello\nAssistant: hello hello stopping at the end of the line, well, well\n",
]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level(vocab_size: int = 420, adds_bos: bool = False) -> Tokenizer:
    """Byte-level BPE; a character of several bytes may be several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(text, special=True) for text in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))]
        )
    return tokenizer


def sentencepiece_like() -> Tokenizer:
    """BPE with visible blanks and byte fallback, decoded the way Llama's first tokenizers are."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    letters = sorted(set("▁" + "".join(TEXT).replace(" ", "▁").replace("\n", "")) - set("🙂🙃你好世界"))
    vocabulary = {piece: index for index, piece in enumerate([*pieces, *letters, "▁t", "he", "▁the", "▁w", "▁▁"])}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "w"), ("▁", "▁")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def metaspace() -> Tokenizer:
    """Visible blanks through the Metaspace pair, as T5 and newer Llama conversions use it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>"], show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def write_directory(tokenizer: Tokenizer, directory: Path, template: str | None = TEMPLATE) -> None:
    """A tokenizer directory as a repository holds it."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": {"content": "<pad>"}}
    if template:
        settings["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
