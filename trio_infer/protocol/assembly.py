"""Partial results and the final reply of one request, put together.

Whatever the peer sends, the deltas that come out add up to the completion; a final reply that
contradicts them is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ..models import Completion, TokenDelta
from .conversion import (
    Generated,
    Known,
    generated_of,
    request_failed,
    to_completion,
    to_failed_completion,
)
from .detokenizing import Detokenizer
from .packing import Frame, MalformedMessage, unpack_map
from .structuring import structure

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Assembler", "PartialResult"]


@attrs.frozen
class PartialResult:
    """The fields of a partial result that a delta is made of, checked."""

    new_tokens: list[int]
    new_log_probs: list[float] | None = None
    new_top_n_logprobs: list[dict[str, float]] | None = None


@attrs.define(eq=False)
class Assembler:
    """What has arrived of one request, in order.

    Attributes:
        deserialize: whether the end of it is to be a `Completion`, or else the fields as they came.
        tokens: every token id that has arrived.
        taken: how many of them a delta has carried away.
        detokenizer: what makes text of them, if anything does.
    """

    deserialize: bool = True
    tokens: list[int] = attrs.field(factory=list)
    taken: int = 0
    detokenizer: Detokenizer | None = None
    _log_probs: list[float] = attrs.field(factory=list)
    _top_n: list[dict[str, float]] = attrs.field(factory=list)

    def add_partial(self, body: Frame) -> None:
        """Takes in a partial result.

        Raises:
            MalformedMessage: if it makes no sense, or not beside those before it.
        """
        self.add_partial_fields(unpack_map(body))

    def add_partial_fields(self, fields: Mapping[str, Any]) -> None:
        """As `add_partial`, of a body that is unpacked already."""
        partial: PartialResult = structure(fields, PartialResult)
        count = len(partial.new_tokens)
        log_probs = partial.new_log_probs or []
        top_n = _aligned(partial.new_top_n_logprobs or [], log_probs, count)
        self._check(count, log_probs, top_n)
        self._append(partial.new_tokens, log_probs, top_n)

    def finish(self, body: Frame, known: Known) -> Any:
        """Takes in the final reply.

        Args:
            body: the finished request.
            known: what the client knows of it besides.

        Returns:
            A `Completion`; or the fields of the reply and its ``latency``, as megatron-core's
            own client has it.

        Raises:
            MalformedMessage: if it makes no sense, or contradicts what came before.
            RequestFailed: if the engine gave up on the request.
        """
        return self.finish_fields(unpack_map(body), known)

    def finish_fields(self, fields: dict[str, Any], known: Known) -> Any:
        """As `finish`, of a body that is unpacked already."""
        if self.deserialize:
            completion = to_completion(fields, known)
            if completion.finish_reason == "error":
                raise request_failed(completion)
            self._add_rest(completion)
            return completion
        generated = generated_of(fields)
        if generated.failed:
            raise request_failed(to_failed_completion(fields, known))
        self._add_rest(generated)
        return fields | {"latency": known.latency}

    def _add_rest(self, whole: Completion | Generated) -> None:
        """Takes in what the whole request has beyond what came before."""
        seen = len(self.tokens)
        tokens = whole.generated_tokens or []
        log_probs = whole.generated_log_probs or []
        top_n = whole.generated_top_n_logprobs or []
        if tokens[:seen] != self.tokens:
            msg = "a final reply whose tokens contradict the partial results before it"
            raise MalformedMessage(msg)
        self._check(len(tokens), log_probs, top_n)
        self._append(tokens[seen:], log_probs[seen:], top_n[seen:])

    def _check(self, count: int, log_probs: list[float], top_n: list[dict[str, float]]) -> None:
        """Log probs come for each of ``count`` tokens or for none, as they did before."""
        for name, values, before in (
            ("log probs", log_probs, self._log_probs),
            ("top-n log probs", top_n, self._top_n),
        ):
            if (values or before) and len(values) != count:
                msg = f"{len(values)} {name} for {count} tokens"
                raise MalformedMessage(msg)
            if values and len(before) != len(self.tokens):
                msg = f"{name} for some of the tokens only"
                raise MalformedMessage(msg)

    def _append(
        self, tokens: list[int], log_probs: list[float], top_n: list[dict[str, float]]
    ) -> None:
        self.tokens += tokens
        self._log_probs += log_probs
        self._top_n += top_n

    @property
    def has_untaken(self) -> bool:
        """Whether there is something for a delta."""
        return self.taken < len(self.tokens)

    def take_all(self) -> None:
        """Counts everything that arrived as taken."""
        self.taken = len(self.tokens)
        if self.detokenizer is not None:
            self.detokenizer.take_all()

    def take_delta(self, *, ended: bool = False) -> TokenDelta | None:
        """What arrived since the last call, as one delta; None if nothing did.

        Args:
            ended: whether nothing more will arrive, so that no text is held back any more.

        Raises:
            Exception: what the tokenizer raises; nothing was taken then.
        """
        text = None
        if self.detokenizer is not None:
            text = self.detokenizer.take(self.tokens, ended=ended)
        start, self.taken = self.taken, len(self.tokens)
        if start == self.taken and not text:
            return None
        return TokenDelta(
            self.tokens[start:],
            self._log_probs[start:] or None,
            self._top_n[start:] or None,
            text,
        )


def _aligned(
    top_n: list[dict[str, float]], log_probs: list[float], count: int
) -> list[dict[str, float]]:
    """The entries that stand at the positions of ``count`` tokens.

    The engine cuts them otherwise than the tokens where stop words hold tokens back, and repeats
    some. Those that hold the log probs of the tokens are theirs; with none such, the first ones.
    """
    surplus = len(top_n) - count
    if surplus <= 0 or len(log_probs) != count:
        return top_n[:count]

    def matches(start: int) -> int:
        entries = top_n[start : start + count]
        return sum(p in entry.values() for p, entry in zip(log_probs, entries, strict=True))

    start = max(0, surplus, key=matches)
    return top_n[start : start + count]
