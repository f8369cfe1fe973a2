"""One answer of a conversation: received, shown as it comes, and stopped by Ctrl-C."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import click
import trio

from ..errors import (
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    InferenceError,
    RemoteProtocolError,
    RequestFailed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..models import Completion
    from ..streams import CompletionStream
    from .session import Session
    from .tokenizing import ModelDecoder

__all__ = ["Answer"]


class Answer:
    """One request, and its text on standard output.

    Args:
        stream: the request, not handed over yet.
        decoder: what makes text of its tokens.
        session: where that goes, and what may stop it.

    Attributes:
        begun: whether it has been handed over.
        stopped: whether Ctrl-C has stopped it.
        failure: why it ends where it does, if it should not.
    """

    def __init__(
        self,
        stream: CompletionStream[Completion],
        decoder: ModelDecoder,
        session: Session,
    ) -> None:
        self._stream = stream
        self._decoder = decoder
        self._session = session
        self._output = session.output
        self._shown = 0
        self.begun: bool = False
        self.stopped: bool = False
        self.failure: InferenceError | None = None

    @property
    def tokens(self) -> list[int]:
        """All that have come."""
        return self._stream.tokens

    @property
    def completion(self) -> Completion | None:
        """The engine's last word, if it has come."""
        return self._stream.completion

    async def run(self, *, connect_timeout: float) -> None:
        """Receives all of it, or as much as it is let.

        Args:
            connect_timeout: seconds that it may take to connect again, if need be.
        """
        stream = self._stream
        await trio.lowlevel.checkpoint()
        try:
            async with AsyncExitStack() as stack:
                with self._session.interruption.stops() as stopping:
                    await self._begin(stack, connect_timeout)
                    async for delta in stream:
                        self._show(delta.tokens)
                self.stopped = stopping.cancelled_caught
                if self.stopped and self.begun:
                    await self._session.end(stream)
        except (ConnectError, ConnectionLost, RemoteProtocolError, RequestFailed) as error:
            self.failure = error
        finally:
            with suppress(click.UsageError):
                self._show(stream.tokens[self._shown :])
            self._output.text(self._decoder.rest())
            self._output.end_line()
            if self._session.interruption.signal is not None:
                self._output.note(f"interrupted after {len(stream.tokens)} tokens")

    async def _begin(self, stack: AsyncExitStack, connect_timeout: float) -> None:
        with trio.move_on_after(connect_timeout):
            await stack.enter_async_context(self._stream)
            self.begun = True
        if not self.begun:
            msg = f"no connection came about within {connect_timeout:g} s"
            raise ConnectTimeout(msg)

    def _show(self, tokens: Sequence[int]) -> None:
        self._output.text(self._decoder.decode(tokens))
        self._shown += len(tokens)
