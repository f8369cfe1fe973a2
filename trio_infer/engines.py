"""Control over the engines: signals that a coordinator broadcasts and nobody acknowledges.

What may follow what is this table, of the state that the coordinator is in as far as this client
can tell: it starts from *running*, and knows of no other client's signals.

==================== ========= ========== ===========
signal               running   paused     suspended
==================== ========= ========== ===========
PAUSE                paused    paused     suspended
UNPAUSE              --        running    --
SUSPEND              --        suspended  --
RESUME               --        --         paused
STOP                 --        running    running
SET_GENERATION_EPOCH running   paused     suspended
the profiler's       running   paused     suspended
==================== ========= ========== ===========

A PAUSE takes the engines many steps, and UNPAUSE, SUSPEND or STOP before they are through kills
them. So the blocks want to be told when it is done, and undo nothing of which they were not told.
All other signals engines are through with before they look for the next.
"""

from __future__ import annotations

import enum
import inspect
import logging
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

import attrs
import trio

from .endings import client_closed
from .errors import LocalProtocolError
from .models.scalars import to_flag, to_int
from .protocol.dialect import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
    from contextlib import AbstractAsyncContextManager

    from .exchange import Exchange

__all__ = ["EngineControl"]

_logger: Final = logging.getLogger(__name__)


class _State(enum.Enum):
    RUNNING = "running"
    PAUSED = "paused"
    SUSPENDED = "suspended"


_UNCHANGED: Final = {state: state for state in _State}

_TRANSITIONS: Final[Mapping[Kind, Mapping[_State, _State]]] = {
    Kind.PAUSE: _UNCHANGED | {_State.RUNNING: _State.PAUSED},
    Kind.UNPAUSE: {_State.PAUSED: _State.RUNNING},
    Kind.SUSPEND: {_State.PAUSED: _State.SUSPENDED},
    Kind.RESUME: {_State.SUSPENDED: _State.PAUSED},
    Kind.STOP: {_State.PAUSED: _State.RUNNING, _State.SUSPENDED: _State.RUNNING},
    Kind.SET_GENERATION_EPOCH: _UNCHANGED,
    Kind.START_CUDA_PROFILER: _UNCHANGED,
    Kind.STOP_CUDA_PROFILER: _UNCHANGED,
}


_INSTEAD: Final = {
    (Kind.UNPAUSE, _State.SUSPENDED): "resume() them first",
    (Kind.SUSPEND, _State.SUSPENDED): "they need it no second time",
}
_BY_ANOTHER: Final = "force=True sends it all the same, if another client has seen to that"
_BY_HAND: Final = "they stay as they are until resume() and unpause() are called, once they can be"


@attrs.define
class _Hold:
    """A state that blocks keep the engines in.

    Attributes:
        blocks: how many do so now.
        ours: whether the first of them brought the engines there, so that the last has to undo it.
        confirmed: whether the engines are known to have got there.
    """

    blocks: int = 0
    ours: bool = False
    confirmed: bool = False


class EngineControl:
    """The engines behind a coordinator. To be had as `InferenceClient.engines`.

    The methods that are no blocks send a signal and return at once. **Nothing tells whether it was
    heeded**: the coordinator drops what does not fit its state, with a line in its own log. The
    state is all clients' together, while what is refused here follows from what this client alone
    has sent.

    They raise `LocalProtocolError` for a signal that cannot be valid after what this client has
    sent, `UnsupportedByDialect` for one that the dialect lacks, `ConnectionLost` while there is no
    connection, and `trio.ClosedResourceError` once the client is closed; then nothing was sent.
    """

    def __init__(self, exchange: Exchange, *, close_timeout: float) -> None:
        self._exchange = exchange
        self._close_timeout = close_timeout
        self._state = _State.RUNNING
        self._pause = _Hold()
        self._suspension = _Hold()
        self._epoch = exchange.signals.epoch

    def __repr__(self) -> str:
        return f"<EngineControl, {self._state.value} as far as this client knows>"

    def pause(self) -> None:
        """Asks the engines to stop stepping. They take requests and aborts, and answer neither.

        It takes them up to some twenty steps. Another signal before they are through kills them:
        `paused` waits for that.
        """
        self._send(Kind.PAUSE)

    def unpause(self, *, force: bool = False) -> None:
        """Lets the engines go on.

        Args:
            force: whether to send it even though this client has not paused them, but another one.
        """
        self._send(Kind.UNPAUSE, force=force)

    def suspend(self, *, force: bool = False) -> None:
        """Asks paused engines to give back the memory of their KV cache.

        Args:
            force: whether to send it even though this client has not paused them, but another one.
        """
        self._send(Kind.SUSPEND, force=force)

    def resume(self, *, force: bool = False) -> None:
        """Asks suspended engines to take their memory again. They are paused then.

        Args:
            force: whether to send it even though this client has not suspended them, but another
                one.
        """
        self._send(Kind.RESUME, force=force)

    def stop(self, *, force: bool = False) -> None:
        """Ends paused or suspended engines for good. The coordinator waits for new ones.

        Args:
            force: whether to send it even though this client has not paused them, but another one.
        """
        self._send(Kind.STOP, force=force)

    def set_generation_epoch(self, epoch: int) -> None:
        """Stamps the requests in flight, and those to come: their tokens are of this epoch now.

        Args:
            epoch: such as the number of weight updates so far. Completions tell it by
                `Completion.policy_epoch` and `Completion.kv_cache_epoch`.
        """
        self._send(Kind.SET_GENERATION_EPOCH, epoch=to_int(epoch, "epoch"))

    def start_cuda_profiler(self) -> None:
        """Starts the CUDA profiler of every engine."""
        self._send(Kind.START_CUDA_PROFILER)

    def stop_cuda_profiler(self) -> None:
        """Stops the CUDA profiler of every engine."""
        self._send(Kind.STOP_CUDA_PROFILER)

    def _send(self, kind: Kind, *, force: bool = False, **values: int) -> None:
        """What users send: whatever state that leads to is theirs to leave again."""
        self._send_one(kind, force=to_flag(force, "force"), **values)
        if _TRANSITIONS[kind] is _UNCHANGED:
            return
        if self._state is _State.RUNNING or not self._pause.blocks:
            self._pause.ours = False
        if self._state is not _State.SUSPENDED or not self._suspension.blocks:
            self._suspension.ours = False

    def _send_one(self, kind: Kind, *, force: bool = False, **values: int) -> None:
        self._exchange.signals.check_open()
        after = self._after(kind, force=force)
        self._exchange.signals.send(kind, **values)
        self._state = after

    def _forget_what_is_lost(self) -> None:
        """Of another connection's engines nothing is known, unless a block has still to undo it."""
        epoch = self._exchange.signals.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            if not self._pause.blocks:
                self._state = _State.RUNNING
                self._pause, self._suspension = _Hold(), _Hold()

    def _after(self, kind: Kind, *, force: bool) -> _State:
        """The state behind a signal, if it may be sent."""
        self._forget_what_is_lost()
        transitions = _TRANSITIONS[kind]
        after = transitions.get(self._state)
        if after is None and force:
            after = next(iter(transitions.values()))
        if after is None:
            before = " or ".join(state.value for state in transitions)
            instead = _INSTEAD.get((kind, self._state), _BY_ANOTHER)
            msg = (
                f"{kind.name} is for engines that are {before}, and as far as this client knows "
                f"they are {self._state.value}: {instead}"
            )
            raise LocalProtocolError(msg)
        return after

    # Blocks

    def paused(
        self, *, confirm: Callable[[], Awaitable[object]], epoch: int | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Engines that are paused for the length of a block, such as while weights change.

        Entering sends PAUSE and waits for ``confirm``. Leaving sends the epoch, if the block did
        not fail, and UNPAUSE; it never waits. Without a connection they go out over the next one,
        before any request. Blocks may be nested, in one task or several: the last one to end
        unpauses, and none does if this client had paused the engines before the first.

        Cancelled while confirming, or when ``confirm`` raises, it is awaited again, shielded and
        bounded by the client's ``close_timeout``: only engines that are paused can be unpaused. If
        that does not succeed nothing is undone, and the log says so.

        Args:
            confirm: an async function that returns when all engines are paused. The protocol has no
                sign for that; whoever runs the engines has. **It must not mistake an earlier pause
                for this one**: a signal takes its time to reach the engines, so between two blocks
                let it be seen that they run again.
            epoch: the generation epoch to set before they go on.

        Raises:
            TypeError, ValueError: for a wrong argument; at once.
            ConnectionLost: on entering, while there is no connection.
            trio.ClosedResourceError: on entering, once the client is closed.
        """
        _check_confirm(confirm)
        number = None if epoch is None else to_int(epoch, "epoch")
        return self._paused(confirm, number)

    def suspended(
        self, *, confirm: Callable[[], Awaitable[object]]
    ) -> AbstractAsyncContextManager[None]:
        """Engines that are suspended for the length of a block, within one of `paused`.

        Entering sends SUSPEND and waits for ``confirm``; leaving sends RESUME. In all else it is as
        `paused`.

        Args:
            confirm: an async function that returns when all engines are suspended.

        Raises:
            TypeError: for a wrong argument; at once.
            LocalProtocolError: on entering, if this client has not paused the engines.
            ConnectionLost: on entering, while there is no connection.
            trio.ClosedResourceError: on entering, once the client is closed.
        """
        _check_confirm(confirm)
        return self._suspended(confirm)

    @asynccontextmanager
    @trio.lowlevel.enable_ki_protection
    async def _paused(
        self, confirm: Callable[[], Awaitable[object]], epoch: int | None
    ) -> AsyncGenerator[None]:
        await trio.lowlevel.checkpoint_if_cancelled()
        confirmation = _call(confirm)
        with _closing(confirmation):
            self._enter(self._pause, Kind.PAUSE, _State.PAUSED)
        try:
            await self._await_confirmation(self._pause, confirmation, confirm)
            yield
            if epoch is not None:
                self._exchange.signals.send_or_owe(Kind.SET_GENERATION_EPOCH, epoch=epoch)
        finally:
            self._exit(self._pause, Kind.UNPAUSE, _State.PAUSED)

    @asynccontextmanager
    @trio.lowlevel.enable_ki_protection
    async def _suspended(self, confirm: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
        await trio.lowlevel.checkpoint_if_cancelled()
        confirmation = _call(confirm)
        with _closing(confirmation):
            self._enter(self._suspension, Kind.SUSPEND, _State.SUSPENDED)
        self._pause.blocks += 1  # what is suspended is paused, whoever paused it
        try:
            await self._await_confirmation(self._suspension, confirmation, confirm)
            yield
        finally:
            self._exit(self._suspension, Kind.RESUME, _State.SUSPENDED)
            self._end(self._pause, Kind.UNPAUSE, _State.PAUSED)

    def _enter(self, hold: _Hold, kind: Kind, state: _State) -> None:
        self._exchange.signals.check_open()
        self._forget_what_is_lost()
        # A second PAUSE is ignored, a second SUSPEND warned of; and it may be another one's by now.
        moves = _TRANSITIONS[kind].get(self._state, state) is not self._state
        if moves and kind is Kind.SUSPEND and self._pause.ours and not self._pause.confirmed:
            msg = "SUSPEND kills engines that are not paused yet, and nobody has confirmed that"
            raise LocalProtocolError(msg)
        if self._state is state and kind is Kind.SUSPEND:
            self._exchange.signals.check()
        else:
            self._send_one(kind)
        if moves:
            hold.ours, hold.confirmed = True, False
        hold.blocks += 1
        self._exchange.enter_scope()

    def _exit(self, hold: _Hold, kind: Kind, state: _State) -> None:
        try:
            self._end(hold, kind, state)
        finally:
            self._exchange.leave_scope()

    def _end(self, hold: _Hold, kind: Kind, state: _State) -> None:
        """Undoes what the first block did, if this is the last."""
        hold.blocks -= 1
        if hold.blocks or not hold.ours:
            return
        if self._state is _State.RUNNING:  # they were unpaused, or stopped, by hand
            hold.ours = False
            return
        if not hold.confirmed or self._state is not state:
            if hold.confirmed:
                why = f"they are {self._state.value}, not {state.value}"
            else:
                why = f"they were not confirmed to be {state.value}"
            _logger.warning("%s was not sent to engines, since %s: %s", kind.name, why, _BY_HAND)
            return
        self._exchange.signals.send_or_owe(kind)
        self._state = _TRANSITIONS[kind][state]
        hold.ours = False

    async def _await_confirmation(
        self,
        hold: _Hold,
        confirmation: Awaitable[object],
        confirm: Callable[[], Awaitable[object]],
    ) -> None:
        try:
            await confirmation
        except BaseException:
            with trio.move_on_after(self._close_timeout, shield=True):  # bounded: engines would die
                if await _confirms(confirm):
                    hold.confirmed = True
            raise
        hold.confirmed = True
        if self._exchange.is_leaving:
            raise client_closed()


async def _confirms(confirm: Callable[[], Awaitable[object]]) -> bool:
    try:
        await confirm()
    except Exception:
        _logger.warning("the state of the engines could not be confirmed", exc_info=True)
        return False  # noqa: ASYNC910 - if it fails at once, so be it
    return True


def _call(confirm: Callable[[], object]) -> Awaitable[object]:
    """Calls it, while it is still early enough to find that there is nothing to wait for."""
    confirmation = confirm()
    if not inspect.isawaitable(confirmation):
        msg = f"confirm must be an async function, not one that returns {confirmation!r:.40}"
        raise TypeError(msg)
    return confirmation


@contextmanager
def _closing(confirmation: Awaitable[object]) -> Generator[None]:
    """Closes it, if it comes to nothing."""
    try:
        yield
    except BaseException:
        if inspect.iscoroutine(confirmation):
            confirmation.close()
        raise


def _check_confirm(confirm: object) -> None:
    if inspect.iscoroutine(confirm):
        confirm.close()
        msg = "confirm must be an async function, not what calling it returns: leave out the ()"
        raise TypeError(msg)
    if not callable(confirm):
        msg = f"confirm must be an async function, not {type(confirm).__name__}"
        raise TypeError(msg)
