"""What a command asks a coordinator by, and shows what comes of it with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from ..client import InferenceClient
from ..models import Completion
from .blame import blaming_user
from .interruption import Interruption
from .output import Output

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..models import SamplingParams
    from ..streams import CompletionStream
    from .target import Target

__all__ = ["Session", "run_session"]

ReturnT = TypeVar("ReturnT")

GRACE_SECONDS: Final = 1.0
"""How long the last tokens of a request that was cut short are waited for."""


@attrs.frozen
class Session:
    """A client of the coordinator, where its answers go, and what interrupts them."""

    client: InferenceClient[Completion]
    output: Output
    interruption: Interruption

    @property
    def can_abort(self) -> bool:
        """Whether engines can be told to stop."""
        return self.client.dialect.can_abort

    def stream(
        self, prompt: str | list[int], sampling_params: SamplingParams
    ) -> CompletionStream[Completion]:
        """A request, which is not handed over yet.

        Raises:
            click.UsageError: it makes no sense.
        """
        with blaming_user():
            return self.client.stream(prompt, sampling_params)

    async def end(self, stream: CompletionStream[Completion]) -> None:
        """Ends a request early, and waits a moment for its last tokens, if there can be any."""
        await trio.lowlevel.checkpoint()
        if self.can_abort:
            with trio.move_on_after(GRACE_SECONDS):
                await stream.finish_early()


async def run_session(
    target: Target,
    interruption: Interruption,
    ask: Callable[[Session], Awaitable[ReturnT]],
) -> ReturnT | None:
    """Lets a coordinator be asked, and returns what ``ask`` does.

    The first signal cancels it, and no more; None then.
    """
    output, returned = Output(), None
    async with target.serving() as address, output.writing():
        with interruption.cancels():
            async with target.asking(address, output.note) as client:
                returned = await ask(Session(client, output, interruption))
            if interruption.signal is None:
                await output.flush()
    return returned
