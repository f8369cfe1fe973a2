"""What several commands have: options, and how they are given and checked."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from ..protocol.dialects import DIALECTS, ENVIRONMENT, FRAMED
from .blame import blaming_user

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

__all__ = ["SETTINGS", "check_finite", "dialect_option", "gather_options"]

SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""What holds for all commands."""

dialect_option: Decorator = click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    envvar=ENVIRONMENT,
    show_envvar=True,
    default=FRAMED.name,
    show_default=True,
    help="What the coordinator speaks. The wrong one can kill it.",
)


def check_finite(_context: object, _option: object, value: float | None) -> float | None:
    """Refuses infinity and what is no number, which click's ranges let pass.

    Raises:
        click.BadParameter: it is one of them.
    """
    if value is not None and not math.isfinite(value):
        msg = f"{value} is not finite"
        raise click.BadParameter(msg)
    return value


def gather_options(
    name: str, options: Sequence[Decorator], take: Callable[[dict[str, Any]], object]
) -> Decorator:
    """What gives a command options that it gets as one argument.

    Args:
        name: of the argument.
        options: in the order of ``--help``.
        take: takes their values out of all that were given, and makes the argument of them.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def call(**given: Any) -> Any:
            with blaming_user():
                taken = take(given)
            return command(**{name: taken}, **given)

        made: Callable[..., Any] = call
        for option in reversed(options):
            made = option(made)
        return made

    return decorate
