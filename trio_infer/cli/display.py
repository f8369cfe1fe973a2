"""What of a generation is shown, where, and when.

Partial results carry token ids alone; their text comes from the coordinator, in the final reply. So
text can be shown while it is generated only where its tokenizer is known.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from .records import completion_record, to_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..models import Completion, TokenDelta
    from .output import Output
    from .tokenizing import Decoder

__all__ = ["Display", "JsonDisplay"]


class Display:
    """Shows one generation as text.

    Args:
        output: where.
        decoder: what makes text of token ids; None where the tokenizer is not known.
        stream: whether to show what comes at once, as text or, where that cannot be, as ids on
            standard error; otherwise there is but the text at the end.
    """

    def __init__(self, output: Output, decoder: Decoder | None, *, stream: bool) -> None:
        self._output = output
        self._decoder = decoder
        self._stream = stream
        self._shown = ""
        self._taken = 0
        self._told_ids = False

    def show(self, delta: TokenDelta) -> None:
        """Shows the next tokens, if they are to be shown before the end.

        Raises:
            click.UsageError: if they are not of the tokenizer that was named.
        """
        if not self._stream:
            return
        self._taken += len(delta.tokens)
        if self._decoder is None:
            self._tell_ids(delta.tokens)
        else:
            self._add(self._decoder.decode(delta.tokens))

    def _add(self, text: str) -> None:
        self._shown += text
        self._output.text(text)

    def _tell_ids(self, tokens: Sequence[int]) -> None:
        self._told_ids = True
        self._output.aside("".join(f"{token} " for token in tokens))

    def finish(self, tokens: Sequence[int], completion: Completion | None) -> None:
        """Shows what has not been shown yet.

        Args:
            tokens: all that have come.
            completion: the coordinator's word on it; None where the generation was cut short.
        """
        if completion is None or completion.generated_text is None:
            self._show_rest(tokens[self._taken :])
            text = self._shown
        else:
            text = completion.generated_text
        if self._told_ids:
            self._output.aside("\n")
        if text.startswith(self._shown):
            self._add(text[len(self._shown) :])
            self._output.end_line()
        else:
            self._output.end_line()
            self._output.note("--tokenizer does not fit: the coordinator has another text")

    def _show_rest(self, tokens: Sequence[int]) -> None:
        if self._decoder is not None:
            with suppress(click.UsageError):
                self._add(self._decoder.decode(tokens))
                return
        if tokens:
            self._tell_ids(tokens)


class JsonDisplay:
    """Shows one generation as an object of JSON on a line, and before it each delta as another.

    Args:
        output: where.
        decoder: what makes text of token ids; None where the tokenizer is not known.
        stream: whether to show deltas at all.
    """

    def __init__(self, output: Output, decoder: Decoder | None, *, stream: bool) -> None:
        self._output = output
        self._decoder = decoder
        self._stream = stream
        self._shown = ""
        self._taken = 0

    def show(self, delta: TokenDelta) -> None:
        """Shows the next tokens, if they are to be shown before the end.

        Raises:
            click.UsageError: if they are not of the tokenizer that was named.
        """
        if not self._stream:
            return
        text = None if self._decoder is None else self._decoder.decode(delta.tokens)
        self._shown += text or ""
        self._taken += len(delta.tokens)
        self._write(
            tokens=delta.tokens,
            text=text,
            log_probs=delta.log_probs,
            top_n_logprobs=delta.top_n_logprobs,
        )

    def finish(self, tokens: Sequence[int], completion: Completion | None) -> None:
        """Shows the completion; where it was cut short, what has come."""
        if completion is not None:
            self._write(**completion_record(completion))
        elif tokens:
            self._write(
                generated_text=self._text(tokens),
                generated_tokens=tokens,
                generated_length=len(tokens),
                finish_reason="abort",
                from_deltas=True,
            )

    def _text(self, tokens: Sequence[int]) -> str | None:
        if self._decoder is not None:
            with suppress(click.UsageError):
                return self._shown + self._decoder.decode(tokens[self._taken :])
        return None

    def _write(self, **fields: Any) -> None:
        self._output.text(to_line({k: v for k, v in fields.items() if v is not None}))
