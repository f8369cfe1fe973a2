"""Which coordinator a command asks: the one at an address, or else one of its own."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from ..embedded import LanguageModel, open_coordinator
from ..opening import open_client
from .blame import opening
from .model import context_option, load_model, model_option
from .options import dialect_option, gather_options

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from ..client import InferenceClient
    from ..models import Completion
    from .options import Decorator

__all__ = ["Target", "embedded_options", "paced_options", "single_options", "target_options"]


@attrs.frozen(kw_only=True)
class Target:
    """The coordinator that a command asks, and how.

    Attributes:
        address: of the coordinator; None for an embedded one.
        dialect: what it speaks.
        connect_timeout: how many seconds connecting may take.
        seed: where chance begins in an embedded one; None: somewhere else each time.
        step_time: how many seconds a step of an embedded one takes; None: as few as it can.
        model: what an embedded one runs; None: the small model.
    """

    address: str | None
    dialect: str
    connect_timeout: float
    seed: int | None = None
    step_time: float | None = None
    model: LanguageModel | None = None

    def __attrs_post_init__(self) -> None:
        if self.address is not None and (self.seed, self.step_time) != (None, None):
            msg = (
                "--seed and --step-time are for the embedded coordinator, not for one at an address"
            )
            raise click.UsageError(msg)

    def check_tokenizer(self, given: str | None) -> None:
        """Refuses a tokenizer that is named where it is known.

        Raises:
            click.UsageError: it is.
        """
        if self.address is None and given is not None:
            msg = "--tokenizer is for a coordinator at an --address; the embedded one's is known"
            raise click.UsageError(msg)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[str]:
        """The block in which the coordinator serves, and its address.

        To be opened around the client's: it has to outlive whatever ends that.
        """
        if self.address is not None:
            yield self.address
            return
        make = partial(
            open_coordinator,
            dialect=self.dialect,
            seed=self.seed,
            step_time=self.step_time or 0.0,
            model=self.model,
        )
        async with opening(make) as coordinator:
            yield coordinator.address

    def open_client(self, address: str) -> AbstractAsyncContextManager[InferenceClient[Completion]]:
        """A client of the coordinator that serves there."""
        return opening(
            lambda: open_client(address, dialect=self.dialect, connect_timeout=self.connect_timeout)
        )

    @asynccontextmanager
    async def asking(
        self, address: str, note: Callable[[str], None]
    ) -> AsyncGenerator[InferenceClient[Completion]]:
        """A block with a client as `open_client` has it.

        A note tells what is still owed at its end, unless an error tells why it has ended, or the
        coordinator ends with it.
        """
        client = None
        try:
            async with self.open_client(address) as client:
                yield client
        finally:
            if client is not None and self.address and not isinstance(sys.exception(), Exception):
                _tell_owed(client.statistics().undelivered, address, note)


def _tell_owed(count: int, address: str, note: Callable[[str], None]) -> None:
    if count:
        what, them = ("its last reply", "it") if count == 1 else (f"{count} last replies", "them")
        note(f"{address} owed {what} still, and may crash when it sends {them}")


_TARGET: Final = (
    click.option(
        "--address",
        envvar="TRIO_INFER_ADDRESS",
        show_envvar=True,
        metavar="ADDRESS",
        help="The coordinator to ask, such as tcp://host:5555.  [default: an embedded one]",
    ),
    dialect_option,
    click.option(
        "--connect-timeout",
        type=click.FloatRange(min=0),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="Give up connecting after this time.",
    ),
)
_SEED: Final = click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Let the embedded coordinator give the same text each time.",
)
_STEP_TIME: Final = click.option(
    "--step-time",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long the embedded coordinator takes for a token.  [default: as little as it can]",
)


def _take(*names: str, **options: int) -> Callable[[dict[str, Any]], Target]:
    """What makes a target of the options of these names.

    Args:
        names: those.
        options: what a model in a GGUF file is told besides.
    """

    def take(given: dict[str, Any]) -> Target:
        taken = {name: given.pop(name) for name in names}
        if "model" in taken:
            if taken["address"] is not None and taken["model"] is not None:
                msg = "--model is for the embedded coordinator, not for one at an address"
                raise click.UsageError(msg)
            taken["model"] = load_model(taken["model"], given.pop("context"), **options)
        return Target(**taken)

    return take


_NAMES: Final = ("address", "dialect", "connect_timeout")

target_options: Decorator = gather_options("target", _TARGET, _take(*_NAMES))
"""Gives a command the options of a coordinator, which it gets as its argument ``target``."""

embedded_options: Decorator = gather_options(
    "target",
    (*_TARGET, model_option, context_option, _SEED, _STEP_TIME),
    _take(*_NAMES, "model", "seed", "step_time"),
)
"""As `target_options`, and those of an embedded one as well."""

single_options: Decorator = gather_options(
    "target",
    (*_TARGET, model_option, context_option, _SEED, _STEP_TIME),
    _take(*_NAMES, "model", "seed", "step_time", max_sequences=1),
)
"""As `embedded_options`, for a command that makes one request at a time."""

paced_options: Decorator = gather_options(
    "target",
    (*_TARGET, model_option, context_option, _STEP_TIME),
    _take(*_NAMES, "model", "step_time"),
)
"""As `embedded_options`, for a command that has a seed of its own."""
