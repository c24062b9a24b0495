"""Draftyard: build, serve and verify speculative decoding for large language models."""

__version__ = "0.1.0"
