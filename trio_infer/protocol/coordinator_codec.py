"""The coordinator's side of the wire: what clients send, and replies to frames."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, Final

import attrs

from .dialect import Dialect, Kind
from .packing import Frame, Frames, MalformedMessage, unpack
from .wire import frames_of, is_id, kind_of, no_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["ClientMessage", "CoordinatorCodec"]


def _are_ints(value: object) -> bool:
    return type(value) is list and all(type(item) is int for item in value)


_FROM_COORDINATOR: Final = (Kind.CONNECT_ACK, Kind.ENGINE_REPLY, Kind.ENGINE_REPLY_PARTIAL)

_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "request_id": is_id,
    "prompt": lambda value: type(value) in (str, list),
    "sampling_params": lambda value: type(value) is dict,
    "block_hashes": lambda value: value is None or _are_ints(value),
    "media_meta": lambda value: value is None or type(value) is dict,
    "media": lambda value: value is None or type(value) in (list, dict),
    "multi_modal_data": lambda value: value is None or type(value) is dict,
    "kv_meta": lambda value: type(value) is dict,
    "src_block_ids": _are_ints,
    "epoch": lambda value: type(value) is int,
}


@attrs.frozen(kw_only=True)
class ClientMessage:
    """What a client sent, as far as its dialect has words for it."""

    kind: Kind
    request_id: int | None = None
    prompt: str | list[int] | None = None
    sampling_params: dict[str, Any] | None = None
    block_hashes: list[int] | None = None
    media_meta: dict[str, Any] | None = None
    media: list[bytes] | dict[str, Any] | None = None
    multi_modal_data: dict[str, Any] | None = None
    offload_params: Any = None
    kv_meta: dict[str, Any] | None = None
    src_block_ids: list[int] | None = None
    epoch: int | None = None


@attrs.frozen
class CoordinatorCodec:
    """The coordinator's side of a dialect."""

    dialect: Dialect

    def connect_ack(self) -> Frames:
        """The answer to a client's first message."""
        return frames_of(self.dialect, Kind.CONNECT_ACK, {})

    def partial(self, request_id: int, partial: Mapping[str, Any]) -> Frames:
        """New tokens of a request that runs."""
        values = {"request_id": request_id, "partial": partial}
        return frames_of(self.dialect, Kind.ENGINE_REPLY_PARTIAL, values)

    def reply(self, request_id: int, finished: Mapping[str, Any]) -> Frames:
        """A finished request."""
        values = {"request_id": request_id, "finished": finished}
        return frames_of(self.dialect, Kind.ENGINE_REPLY, values)

    def decode(self, frames: Sequence[Frame]) -> ClientMessage:
        """Reads what a client sent.

        Raises:
            MalformedMessage: for anything that a client of this dialect would not send.
        """
        if not frames:
            msg = "a message without frames"
            raise MalformedMessage(msg)
        kind, fields = self._first_frame(frames[0])
        layout = self.dialect.layouts[kind]
        expected = (len(layout.fields), len(layout.bodies) + 1)
        if kind in _FROM_COORDINATOR or (len(fields), len(frames)) != expected:
            msg = f"{kind.name} with {len(fields)} fields and {len(frames)} frames"
            raise MalformedMessage(msg)
        bodies = map(unpack, frames[1:])
        values = dict(zip((*layout.fields, *layout.bodies), (*fields, *bodies), strict=True))
        for name, is_right in _CHECKS.items():
            if name in values and not is_right(values[name]):
                msg = f"{kind.name} with the {name} {reprlib.repr(values[name])}"
                raise MalformedMessage(msg)
        return ClientMessage(kind=kind, **values)

    def _first_frame(self, frame: Frame) -> tuple[Kind, list[Any]]:
        """The kind of a message, and what stands behind its header number in the first frame."""
        fields = unpack(frame)
        if type(fields) is not list or not fields:
            raise no_list()
        return kind_of(self.dialect, fields[0]), fields[1:]
