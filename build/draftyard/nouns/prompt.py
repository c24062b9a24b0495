"""Prompts of a pack: a conversation each, with its domain, and whether it may be measured."""

import json
from dataclasses import dataclass

from draftyard.nouns.digest import Json, digest


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. `split` is train or test; `max_tokens` None leaves the limit to the recipe."""

    id: str
    domain: str
    split: str
    length: str
    messages: tuple[Message, ...]
    max_tokens: int | None = None

    def chat_json(self) -> str:
        """The messages as the JSON list that the entry's `chat` parameter announces."""
        listed = [{"role": message.role, "content": message.content} for message in self.messages]
        return json.dumps(listed, ensure_ascii=False)

    @property
    def digest(self) -> str:
        """SHA-256 over everything that decides the answer."""
        listed: list[Json] = [[message.role, message.content] for message in self.messages]
        return digest({"id": self.id, "messages": listed, "max_tokens": self.max_tokens})
