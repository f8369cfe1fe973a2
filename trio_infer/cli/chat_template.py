"""What makes the prompt of a conversation: a template in Jinja's language, of a model's own.

It comes from whoever made the model, and so is run in Jinja's sandbox.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, NoReturn

import click
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2 import nodes
    from jinja2.parser import Parser

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """A chat template, as Hugging Face's and llama.cpp's conventions have them.

    Args:
        source: its text.
        bos_token: the text of the token that begins a prompt.
        eos_token: that of the one that ends an answer.

    Raises:
        click.ClickException: it is no template.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.globals |= {
            "bos_token": bos_token,
            "eos_token": eos_token,
            "raise_exception": _refuse,
            "strftime_now": _now,
        }
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            msg = f"the chat template is none of Jinja's: {error}"
            raise click.ClickException(msg) from None

    def render(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool) -> str:
        """The text of messages, each with its ``role`` and ``content``.

        Args:
            messages: those.
            add_generation_prompt: whether an answer is to follow, and so its beginning does.

        Raises:
            click.ClickException: the template refuses them, or cannot do it.
        """
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # noqa: BLE001 - a template is a program, of somebody's
            what = str(error) if isinstance(error, TemplateError) else repr(error)
            msg = f"the chat template refuses this conversation: {what}"
            raise click.ClickException(msg) from None


class _Generation(Extension):
    """The block around answers in some templates, which tells trainers where they are."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _now(pattern: str) -> str:
    return dt.datetime.now().astimezone().strftime(pattern)
