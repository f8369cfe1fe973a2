"""Whose fault it is: what the library refuses of what the command line says is its user's.

Anywhere else a `ValueError` is a fault of ours, or of the user's own model: of that if code of the
model's was running, or if its answer makes no sense.
"""

from __future__ import annotations

import re
import traceback
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import click

from ..embedded.computation import WrongAnswer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

__all__ = ["blame_from_now_on", "blamed", "blaming_user", "opening"]

OpenedT = TypeVar("OpenedT")

_OTHERWISE: Final = {
    "num_tokens_to_generate": "--num-tokens",
    "stop_words": "--stop",
    "add_BOS": "--add-bos",
}
"""The options of those arguments that are named otherwise."""


_OURS: Final = __name__.partition(".")[0]

_own: Final[dict[str, str]] = {}
"""The modules of the user's own, and what was made of them."""


def blame_from_now_on(what: str, *modules: str) -> None:
    """Lets faults of these modules, if they are not ours, be those of what was made of them."""
    _own.update((each, what) for each in modules if each.partition(".")[0] != _OURS)


def blamed(error: BaseException) -> str | None:
    """What of the user's own an error is a fault of; None if of nothing."""
    if isinstance(error, WrongAnswer):
        return "the model"
    frames = traceback.walk_tb(error.__traceback__)
    names = (frame.f_globals.get("__name__", "") for frame, _ in frames)
    return next((_own[name] for name in names if name in _own), None)


@contextmanager
def blaming_user() -> Iterator[None]:
    """A block in which wrong arguments are those of the command line.

    Raises:
        click.UsageError: in place of `TypeError` and `ValueError`, in the words of the options.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if blamed(error):
            raise
        raise click.UsageError(_in_options(str(error))) from error


@asynccontextmanager
async def opening(
    make: Callable[[], AbstractAsyncContextManager[OpenedT]],
) -> AsyncGenerator[OpenedT]:
    """A block like that which is made, whose beginning alone is as in `blaming_user`."""
    async with AsyncExitStack() as stack:
        with blaming_user():
            opened = await stack.enter_async_context(make())
        yield opened


def _in_options(complaint: str) -> str:
    """A complaint that names options, where it named arguments of functions.

    One of a single word is an argument's name only where it begins the complaint.
    """
    context = click.get_current_context(silent=True)
    options = [] if context is None else context.command.params
    names = _OTHERWISE | {
        each.name: max(each.opts, key=len)
        for each in options
        if isinstance(each, click.Option) and each.name is not None
    }
    names_at = "|".join(rf"\b{name}\b" if "_" in name else rf"^{name}\b" for name in names)
    return re.sub(names_at, lambda found: names[found[0]], complaint)
