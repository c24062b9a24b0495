"""Renders a list of chat messages with a model's own template, in a sandbox."""

import datetime
import json
from collections.abc import Mapping
from typing import NoReturn

import jinja2
from bad_input import BadInput
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROLES_AND_CONTENT = 'a JSON list such as [{"role": "user", "content": "Hello"}]'


def parse_messages(text: str) -> tuple[Mapping[str, object], ...]:
    """Read the messages of a chat request; BadInput says what is wrong with them."""
    try:
        messages = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"chat is true, so text_input must hold {ROLES_AND_CONTENT}: {error}") from None
    if not isinstance(messages, list) or not messages:
        raise BadInput(f"chat is true, so text_input must hold {ROLES_AND_CONTENT}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise BadInput(f"message {index} needs a role and a content, both texts")
    return tuple(messages)


class ChatRenderer:
    """A compiled template; options and globals are those that published templates count on."""

    def __init__(self, template: str, tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from error
        self._tokens = dict(tokens)

    def render(self, text: str) -> str:
        """Messages as JSON text to the prompt, ending where the answer begins."""
        messages = parse_messages(text)
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._tokens)
        except BadInput:
            raise
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise BadInput(f"the model's chat template refuses these messages: {error}") from None


def _to_json(value: object, indent: int | None = None) -> str:
    """JSON without HTML escapes, unlike the filter that comes with the template engine."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise BadInput(f"the model's chat template refuses these messages: {message}")


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
