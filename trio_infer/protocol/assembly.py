"""Partial results and the final reply of one request, put together.

Whatever the peer sends, the deltas that come out add up to the completion; a final reply that
contradicts them is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from ..models import Completion, TokenDelta
from .conversion import (
    Generated,
    Known,
    generated_of,
    request_failed,
    to_completion,
    to_failed_completion,
    usual_completion,
)
from .detokenizing import Detokenizer
from .packing import Frame, MalformedMessage, unpack_map
from .structuring import Wanted, floats, ints, structure, top_n
from .typed import partial_result

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Assembler", "Body", "result_at_once"]

Body: TypeAlias = Frame | dict[str, Any]
"""Of a reply: packed, or unpacked already."""


_PARTIAL_RESULT: Final[Mapping[str, Wanted]] = {
    "new_tokens": ints,
    "new_log_probs": floats,
    "new_top_n_logprobs": top_n,
}
"""The fields of a partial result that a delta is made of."""


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

    def add_partial(self, body: Body) -> None:
        """Takes in a partial result.

        Raises:
            MalformedMessage: if it makes no sense, or not beside those before it.
        """
        partial = None if isinstance(body, dict) else partial_result(body)
        if partial is not None:
            self._add(partial.new_tokens, partial.new_log_probs, partial.new_top_n_logprobs)
            return
        get = structure(_fields_of(body), _PARTIAL_RESULT)[0].get
        tokens = get("new_tokens")
        if tokens is None:
            msg = "a partial result without new_tokens"
            raise MalformedMessage(msg)
        self._add(tokens, get("new_log_probs"), get("new_top_n_logprobs"))

    def _add(
        self,
        tokens: list[int],
        log_probs: list[float] | None,
        top_n: list[dict[str, float]] | None,
    ) -> None:
        if not (log_probs or top_n or self._log_probs or self._top_n):
            self.tokens += tokens  # by far the most bring no more
            return
        log_probs, entries = log_probs or [], top_n or []
        if entries:
            entries = _aligned(entries, log_probs, len(tokens))
        self._check(len(tokens), log_probs, entries)
        self.tokens += tokens
        self._log_probs += log_probs
        self._top_n += entries

    def finish(self, body: Body, known: Known) -> Any:
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
        whole, result = _ended(body, known, deserialize=self.deserialize)
        self.take_rest(whole)
        return result

    def take_rest(self, whole: Completion | Generated) -> None:
        """Takes in what the partial results have left out.

        Raises:
            MalformedMessage: it contradicts them.
        """
        seen, tokens = len(self.tokens), whole.generated_tokens
        if seen and tokens[:seen] != self.tokens:
            msg = "a final reply whose tokens contradict the partial results before it"
            raise MalformedMessage(msg)
        self._check(
            len(tokens), whole.generated_log_probs or [], whole.generated_top_n_logprobs or []
        )
        self.tokens += tokens[seen:] if seen else tokens
        if whole.generated_log_probs:
            self._log_probs += whole.generated_log_probs[seen:]
        if whole.generated_top_n_logprobs:
            self._top_n += whole.generated_top_n_logprobs[seen:]

    def _check(self, count: int, log_probs: list[float], top_n: list[dict[str, float]]) -> None:
        """Log probs come for each of ``count`` tokens or for none, as they did before."""
        if not (log_probs or top_n or self._log_probs or self._top_n):
            return
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
        return self._delta(start, text)

    def whole(self) -> TokenDelta:
        """All that has arrived, as one delta without text. Nothing is taken."""
        return self._delta(0, None)

    def _delta(self, start: int, text: str | None) -> TokenDelta:
        return TokenDelta(
            self.tokens[start:],
            (self._log_probs[start:] or None) if self._log_probs else None,
            (self._top_n[start:] or None) if self._top_n else None,
            text,
        )


def result_at_once(body: Body, known: Known, *, deserialize: bool) -> Any:
    """As `Assembler.finish`, of a request of which nothing has arrived before."""
    whole, result = _ended(body, known, deserialize=deserialize)
    if whole.generated_log_probs or whole.generated_top_n_logprobs:
        Assembler().take_rest(whole)
    return result


def _ended(
    body: Body, known: Known, *, deserialize: bool
) -> tuple[Completion | Generated, Completion | dict[str, Any]]:
    """What a final reply says was generated, and what the request ends in.

    Raises as `Assembler.finish` does.
    """
    if deserialize:
        completion = None if isinstance(body, dict) else usual_completion(body, known)
        if completion is None:
            completion = to_completion(_fields_of(body), known)
        if completion.finish_reason == "error":
            raise request_failed(completion)
        return completion, completion
    fields = _fields_of(body)
    generated = generated_of(fields)
    if generated.failed:
        raise request_failed(to_failed_completion(fields, known))
    return generated, fields | {"latency": known.latency}


def _fields_of(body: Body) -> dict[str, Any]:
    return body if isinstance(body, dict) else unpack_map(body)


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
