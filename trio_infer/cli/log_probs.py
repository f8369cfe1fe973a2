"""How probable tokens were, for people to read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from .console import plain_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..models import Completion
    from .tokenizing import Decoder

__all__ = ["log_prob_table"]

WIDTH: Final = 100


def log_prob_table(completion: Completion, decoder: Decoder | None) -> str:
    """A line for each token: its id, its text if that is known, and how probable it was.

    Args:
        completion: which has log probs.
        decoder: what makes text of its tokens; None where the tokenizer is not known.
    """
    table = Table(box=None, pad_edge=False)
    for column in ("token", "text", "log prob", "probability"):
        table.add_column(column, justify="left" if column == "text" else "right")
    likeliest = completion.generated_top_n_logprobs
    if likeliest:
        table.add_column("likeliest", no_wrap=True)
    prompt = completion.prompt_log_probs or ()
    prompt_tokens = (completion.prompt_tokens or ())[-len(prompt) :] if prompt else ()
    prompt_likeliest = completion.prompt_top_n_logprobs or ()
    for index, log_prob in enumerate(prompt):
        token = prompt_tokens[index] if index < len(prompt_tokens) else None
        _add(table, token, log_prob, _at(prompt_likeliest, index), decoder)
    if prompt:
        table.add_section()
    for index, log_prob in enumerate(completion.generated_log_probs or ()):
        token = completion.generated_tokens[index]
        _add(table, token, log_prob, _at(likeliest or (), index), decoder)
    return plain_text(table, width=WIDTH)


def _at(entries: Sequence[Mapping[str, float]], index: int) -> Mapping[str, float]:
    return entries[index] if index < len(entries) else {}


def _add(
    table: Table,
    token: int | None,
    log_prob: float,
    likeliest: Mapping[str, float],
    decoder: Decoder | None,
) -> None:
    text = decoder.piece(token) if decoder is not None and token is not None else ""
    others = sorted(likeliest.items(), key=lambda item: -item[1])
    cells = (
        "" if token is None else str(token),
        text,
        f"{log_prob:.3f}",
        _percent(log_prob),
        "  ".join(f"{other!r} {_percent(value)}" for other, value in others),
    )
    table.add_row(*map(Text, cells[: len(table.columns)]))


def _percent(log_prob: float) -> str:
    return f"{math.exp(min(log_prob, 0.0)):.1%}"
