"""The lines of a batch's input: what they ask for, and how they are read."""

from __future__ import annotations

import json
import os
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from trio_infer import SamplingParams
from trio_infer.cli.rows import MAX_LINE, LineReader, count_lines, parse_row

if TYPE_CHECKING:
    from pathlib import Path

DEFAULTS = SamplingParams(num_tokens_to_generate=9, top_p=0.5, return_log_probs=True)


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


async def lines_of(path: Path) -> list[tuple[int, bytes | None]]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return [each async for each in LineReader(fd)]
    finally:
        os.close(fd)


def test_a_line_may_override_what_the_options_say() -> None:
    row = parse_row(3, line(prompt=[1, 2], sampling_params={"num_tokens_to_generate": 4}), DEFAULTS)
    assert row is not None
    assert (row.line, row.id, row.prompt) == (3, None, [1, 2])
    assert row.sampling_params.num_tokens_to_generate == 4
    assert row.sampling_params.top_p == 0.5
    assert row.request.tag is row


def test_what_a_line_says_replaces_what_would_exclude_it() -> None:
    own = {"top_k": 3, "num_tokens_total": 20}
    row = parse_row(1, line(prompt="hi", sampling_params=own), DEFAULTS)
    assert row is not None
    params = row.sampling_params
    assert (params.top_k, params.top_p) == (3, 0.0)
    assert (params.num_tokens_total, params.num_tokens_to_generate) == (20, None)


def test_lines_that_say_nothing_of_their_own_share_the_parameters() -> None:
    row = parse_row(1, line(prompt="hi", id="a", answer=42), DEFAULTS)
    assert row is not None
    assert row.sampling_params is DEFAULTS


@pytest.mark.parametrize("blank", [b"", b"  \t", b"\r"])
def test_a_blank_line_asks_for_nothing(blank: bytes) -> None:
    assert parse_row(1, blank, DEFAULTS) is None


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (None, "longer than 64 MiB"),
        (b"nonsense", "no JSON: Expecting value at column 1"),
        (b'{"prompt": "\xff"}', "not UTF-8: invalid start byte at byte 12"),
        (b"[" * 100_000, "nested too deeply"),
        (b'"hi"', "no JSON object"),
        (b"1" * 10_000, "limit"),
        (line(), 'no "prompt"'),
        (line(prompt=7), 'no "prompt"'),
        (line(prompt="hi", id=1.5), "id must be an int"),
        (line(prompt="hi", id=True), "id must be an int"),
        (line(prompt="hi", id="\ud800"), "lone surrogate"),
        (line(prompt="hi", top_k=3), '"top_k" belongs into "sampling_params"'),
        (line(prompt="hi", sampling_params=3), "must be an object"),
        (line(prompt="hi", sampling_params={"topk": 3}), "no sampling parameter 'topk'"),
        (line(prompt="hi", sampling_params={"temperature": "hot"}), "temperature must be a number"),
    ],
)
def test_a_line_that_makes_no_sense_says_why(bad: bytes | None, complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        parse_row(1, bad, DEFAULTS)


async def test_reads_lines_however_they_end(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\n\nthree\r\nlast")
    assert await lines_of(file) == [(1, b"one"), (2, b""), (3, b"three\r"), (4, b"last")]
    fd = os.open(file, os.O_RDONLY)
    assert count_lines(fd) == 4
    os.close(fd)


async def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.touch()
    assert await lines_of(file) == []


async def test_a_line_that_is_too_long_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_infer.cli.rows.MAX_LINE", 1000)
    monkeypatch.setattr("trio_infer.cli.rows.PIECE", 100)
    assert MAX_LINE > 1000
    file = tmp_path / "lines"
    file.write_bytes(b"x" * 1000 + b"\n" + b"x" * 5000 + b"\nlast\n" + b"x" * 1001)
    assert await lines_of(file) == [(1, b"x" * 1000), (2, None), (3, b"last"), (4, None)]


async def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with file.open("wb") as lines:
        for _ in range(4):
            lines.write((line(prompt="x" * 1000) + b"\n") * 1000)
    fd = os.open(file, os.O_RDONLY)
    tracemalloc.start()
    try:
        async for number, each in LineReader(fd):
            row = parse_row(number, each, DEFAULTS)
            assert row is not None
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 2_000_000, "of four million"
    finally:
        tracemalloc.stop()
        os.close(fd)
