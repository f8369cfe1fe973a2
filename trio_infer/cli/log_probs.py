"""How probable tokens were, for people to read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from .console import natural_width, plain_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..models import Completion
    from .tokenizing import Decoder

__all__ = ["WIDTH", "log_prob_table"]

WIDTH: Final = 100
"""Columns where no terminal says how many."""

_HEADS: Final = ("token", "text", "log prob", "probability")


class _Row(NamedTuple):
    """A line of the table."""

    cells: tuple[Text, ...]
    likeliest: list[str]


def log_prob_table(completion: Completion, decoder: Decoder | None, width: int = WIDTH) -> str:
    """A line for each token: its id, its text if that is known, and how probable it was.

    The likeliest others take more lines where they are too many for one.

    Args:
        completion: which has log probs.
        decoder: what makes text of its tokens; None where the tokenizer is not known.
        width: so many columns, if that can be.
    """
    prompt = list(_prompt_rows(completion, decoder))
    likeliest = completion.generated_top_n_logprobs or ()
    generated = [
        _row(completion.generated_tokens[index], log_prob, _at(likeliest, index), decoder)
        for index, log_prob in enumerate(completion.generated_log_probs or ())
    ]
    rows = [*prompt, *generated]
    table = _make_table(_HEADS)
    for row in rows:
        table.add_row(*row.cells)
    if likeliest:
        room = width - natural_width(table) - 1
        table = _make_table((*_HEADS, "likeliest"))
        for row in rows:
            table.add_row(*row.cells, Text("\n".join(_pack(row.likeliest, room))))
    return plain_text(table)


def _make_table(heads: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in heads:
        is_text = head in {"text", "likeliest"}
        table.add_column(head, justify="left" if is_text else "right", no_wrap=True)
    return table


def _prompt_rows(completion: Completion, decoder: Decoder | None) -> Iterator[_Row]:
    log_probs = completion.prompt_log_probs or ()
    tokens = (completion.prompt_tokens or ())[-len(log_probs) :] if log_probs else ()
    likeliest = completion.prompt_top_n_logprobs or ()
    for index, log_prob in enumerate(log_probs):
        token = tokens[index] if index < len(tokens) else None
        yield _row(token, log_prob, _at(likeliest, index), decoder)


def _at(entries: Sequence[Mapping[str, float]], index: int) -> Mapping[str, float]:
    return entries[index] if index < len(entries) else {}


def _row(
    token: int | None,
    log_prob: float,
    likeliest: Mapping[str, float],
    decoder: Decoder | None,
) -> _Row:
    text = decoder.piece(token) if decoder is not None and token is not None else ""
    cells = ("" if token is None else str(token), text, f"{log_prob:.3f}", _percent(log_prob))
    others = sorted(likeliest.items(), key=lambda item: -item[1])
    return _Row(
        tuple(map(Text, cells)),
        [f"{other!r} {_percent(value)}" for other, value in others],
    )


def _pack(words: Sequence[str], room: int) -> list[str]:
    """Lines of so many columns, or of a single word where that is longer."""
    lines: list[str] = []
    for word in words:
        if lines and cell_len(lines[-1]) + 2 + cell_len(word) <= room:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return lines


def _percent(log_prob: float) -> str:
    return f"{math.exp(min(log_prob, 0.0)):.1%}"
