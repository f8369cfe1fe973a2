"""The lines of a batch's input, read as they are wanted, and what each of them asks for."""

from __future__ import annotations

import json
import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from ..models import GenerateRequest, SamplingParams
from ..models.sampling_params import FIELD_NAMES
from ..models.scalars import to_int, to_text

if TYPE_CHECKING:
    from typing import Self

__all__ = ["LineReader", "Row", "count_lines", "parse_row"]

PIECE: Final = 2**18

MAX_LINE: Final = 64 * 2**20
"""Bytes: a longer line is not kept, and is a bad one."""

_EXCLUSIVE: Final = (
    ("num_tokens_to_generate", "num_tokens_total"),
    ("num_tokens_total", "num_tokens_to_generate"),
    ("top_k", "top_p"),
    ("top_p", "top_k"),
)


@attrs.frozen
class Row:
    """A line that makes sense.

    Attributes:
        line: its number, counted from 1.
        id: what it calls itself, if it does.
        prompt: of what it asks for.
        sampling_params: its own, and else those of all lines.
    """

    line: int
    id: str | int | None
    prompt: str | list[int]
    sampling_params: SamplingParams

    @property
    def request(self) -> GenerateRequest:
        """What is to be submitted; its ``tag`` is this row."""
        return GenerateRequest(self.prompt, self.sampling_params, tag=self)


class LineReader:
    """The lines of a file, pipe or terminal with their numbers, in ``async for``.

    No more is held than the longest line and a piece. Lines that are too long come as None.

    Args:
        fd: where to read. That is done in another thread, which a cancellation leaves to itself.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: deque[bytes | None] = deque()
        self._tail = bytearray()
        self._too_long = False
        self._ended = False
        self._number = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, bytes | None]:
        await trio.lowlevel.checkpoint()
        while not self._lines:
            if self._ended:
                raise StopAsyncIteration
            piece = await trio.to_thread.run_sync(os.read, self._fd, PIECE, abandon_on_cancel=True)
            self._take(piece)
        self._number += 1
        return self._number, self._lines.popleft()

    def _take(self, piece: bytes) -> None:
        *ends, tail = piece.split(b"\n")
        for end in ends:
            self._tail += end
            self._end_line()
        self._tail += tail
        if not piece:
            self._ended = True
            if self._tail or self._too_long:
                self._end_line()
        elif len(self._tail) > MAX_LINE:
            self._too_long = True
            self._tail.clear()

    def _end_line(self) -> None:
        whole = not self._too_long and len(self._tail) <= MAX_LINE
        self._lines.append(bytes(self._tail) if whole else None)
        self._tail.clear()
        self._too_long = False


def count_lines(fd: int) -> int:
    """How many lines a file has. Reads all of it, without holding it."""
    count, offset, last = 0, 0, b"\n"
    while piece := os.pread(fd, PIECE, offset):
        count += piece.count(b"\n")
        offset += len(piece)
        last = piece[-1:]
    return count + (last != b"\n")


def parse_row(number: int, line: bytes | None, defaults: SamplingParams) -> Row | None:
    """What a line asks for; None for a blank one.

    Args:
        number: of the line.
        line: the line; None if it was too long.
        defaults: the sampling parameters of lines that say nothing else.

    Raises:
        TypeError, ValueError: the line makes no sense.
    """
    if line is None:
        msg = f"the line is longer than {MAX_LINE >> 20} MiB"
        raise ValueError(msg)
    if not line.strip():
        return None
    fields = _parse(line)
    prompt = fields.get("prompt")
    if not isinstance(prompt, str | list):
        msg = 'it has no "prompt", which is text or a list of token ids'
        raise TypeError(msg)
    misplaced = next((name for name in FIELD_NAMES if name in fields), None)
    if misplaced is not None:
        msg = f'"{misplaced}" belongs into "sampling_params"'
        raise ValueError(msg)
    return Row(
        number, _check_id(fields.get("id")), prompt, _merge(defaults, fields.get("sampling_params"))
    )


def _parse(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line.decode())
    except UnicodeDecodeError as error:
        msg = f"it is not UTF-8: {error.reason} at byte {error.start}"
        raise ValueError(msg) from None
    except json.JSONDecodeError as error:
        msg = f"it is no JSON: {error.msg} at column {error.colno}"
        raise ValueError(msg) from None
    except RecursionError:
        msg = "it is nested too deeply"
        raise ValueError(msg) from None
    if not isinstance(fields, dict):
        msg = "it is no JSON object"
        raise TypeError(msg)
    return fields


def _check_id(value: object) -> str | int | None:
    if value is None:
        return None
    return to_text(value, "id") if isinstance(value, str) else to_int(value, "id")


def _merge(defaults: SamplingParams, own: object) -> SamplingParams:
    """The parameters of one line. What it says of a pair that excludes each other holds."""
    if own is None:
        return defaults
    if not isinstance(own, dict):
        msg = '"sampling_params" must be an object'
        raise TypeError(msg)
    unknown = next((name for name in own if name not in (*FIELD_NAMES, "extra")), None)
    if unknown is not None:
        msg = f"there is no sampling parameter {unknown!r}"
        raise ValueError(msg)
    fields = attrs.fields_dict(SamplingParams)
    reset = {
        other: fields[other].default
        for one, other in _EXCLUSIVE
        if own.get(one) and other not in own
    }
    changes: dict[str, Any] = {**reset, **own}
    return attrs.evolve(defaults, **changes)
