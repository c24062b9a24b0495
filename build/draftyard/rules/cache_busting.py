"""Gives a prompt a beginning of its own, so that a prefix cache has nothing of it."""

import hashlib
from dataclasses import replace

from draftyard.nouns.prompt import Message, Prompt

ID_DIGITS = 8


def request_id(*parts: str | int) -> str:
    """Eight hexadecimal digits that follow from the parts: equally long for all, different for different requests."""
    return hashlib.sha256("/".join(str(part) for part in parts).encode()).hexdigest()[:ID_DIGITS]


def busted(prompt: Prompt, identity: str) -> Prompt:
    """The prompt with a line `[request 1a2b3c4d]` before its first message.

    It stands before anything of the pack's, also before a system message; what a chat template writes ahead of that is
    the same in every request and says nothing. The answer is one to a slightly different prompt, so texts of two arms
    cannot be compared token by token: that is done apart, with prompts as they are.
    """
    first = prompt.messages[0]
    marked = Message(first.role, f"[request {identity}]\n{first.content}")
    return replace(prompt, messages=(marked, *prompt.messages[1:]))
