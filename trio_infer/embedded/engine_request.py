"""One request as an engine decodes it: what there is, when it ends, what it sends meanwhile."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from .finished_request import EngineEvent, EventType, FinishedRequest, Status
from .language_model import ModelSequence
from .request_params import RequestParams
from .sampling import sample_token, top_log_probs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .language_model import LanguageModel

__all__ = ["EngineRequest", "Finding", "Scores"]


class Finding(NamedTuple):
    """A token, and if that is asked for how probable it was, and what was likeliest there."""

    token: int
    log_prob: float | None = None
    top_n: dict[str, float] | None = None


@attrs.define
class Scores:
    """The log probabilities of some tokens, and of the likeliest ones in their places."""

    log_probs: list[float] = attrs.field(factory=list)
    top_n: list[dict[str, float]] = attrs.field(factory=list)

    def add(self, finding: Finding) -> None:
        """Keeps those of one more token, if they were asked for."""
        if finding.log_prob is not None:
            self.log_probs.append(finding.log_prob)
        if finding.top_n is not None:
            self.top_n.append(finding.top_n)

    def drop_last(self) -> None:
        """Forgets the last token."""
        del self.log_probs[-1:], self.top_n[-1:]


@attrs.define(kw_only=True, eq=False)
class EngineRequest:
    """A request that an engine has accepted.

    Attributes:
        tokens: the prompt's and the generated ids, one behind the other.
        termination_id: the token that ends it, by the request's word or else the model's.
        end_tokens: those that end texts of the model.
        budget: how many tokens may be generated; an abort lowers it to what there is.
        block_size_tokens: how many tokens make a block of the prefix cache, if there is one.
        block_hashes: of the prompt's complete blocks.
        num_cached_tokens: how many tokens of the prompt were found in the cache.
        sequence: where a model keeps what it computes of this request, if it does.
        epochs: from which token on which generation epoch holds, if any was set.
        sent: how many generated tokens went out in partial replies.
        stopped: its last token has come; the engine finishes it on the next step.
        aborted: so has an abort.
    """

    request_id: int
    prompt: str | None
    prompt_length: int
    tokens: list[int]
    params: RequestParams
    budget: int
    termination_id: int
    end_tokens: frozenset[int]
    stop_words: list[list[int]]
    rng: random.Random
    events: list[EngineEvent]
    block_size_tokens: int | None = None
    block_hashes: list[int] = attrs.field(factory=list)
    num_cached_tokens: int = 0
    sequence: ModelSequence | None = None
    epochs: list[tuple[int, int]] | None = None
    prompt_scores: Scores = attrs.field(factory=Scores)
    generated_scores: Scores = attrs.field(factory=Scores)
    ttft: float | None = None
    tpot: list[float] = attrs.field(factory=list)
    sent: int = 0
    stopped: bool = False
    aborted: bool = False

    @property
    def generated_length(self) -> int:
        """How many tokens there are behind the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def unscored(self) -> range:
        """The places of the prompt's tokens that are still to be scored; the first never is."""
        if not self.params.wants_prompt_log_probs:
            return range(0)
        return range(1 + len(self.prompt_scores.log_probs), self.prompt_length)

    def due(self, most: int) -> range:
        """The places of the tokens that the next step is to find: the prompt's, then the next one.

        Args:
            most: so many of the prompt's can be scored.
        """
        unscored, end = self.unscored, len(self.tokens)
        if not unscored:
            return range(end, end + 1)
        if len(unscored) > most or self.budget == 0:  # which is for those who want scores alone
            return unscored[:most]
        return range(unscored.start, end + 1)

    @property
    def is_over(self) -> bool:
        """Whether the next step ends it without another token."""
        spent = self.generated_length >= self.budget and not self.unscored
        return self.stopped or self.aborted or spent

    def abort(self) -> None:
        """Leaves it no budget beyond what it has generated."""
        self.aborted = True
        self.budget = self.generated_length

    def stamp(self, epoch: int) -> None:
        """A generation epoch begins; the first one holds from the first token on."""
        if self.epochs is None:
            self.epochs = [(0, epoch)]
        else:
            self.epochs.append((len(self.tokens) - 1, epoch))

    def find(self, place: int, log_probs: Sequence[float], model: LanguageModel) -> Finding:
        """The prompt's token in that place, or behind all tokens the next one, which is drawn."""
        params = self.params
        if place < self.prompt_length:
            token = self.tokens[place]
        else:
            token = sample_token(
                log_probs,
                self.rng,
                temperature=params.temperature,
                top_k=params.top_k,
                top_p=params.top_p,
            )
        if not params.return_log_probs:
            return Finding(token)
        if not params.top_n_logprobs:
            return Finding(token, log_probs[token])
        best = top_log_probs(log_probs, params.top_n_logprobs)
        top_n = {model.detokenize([other]): value for other, value in best}
        return Finding(token, log_probs[token], top_n)

    def extend(self, finding: Finding) -> bool:
        """Appends the next token. Returns whether that was the last one."""
        self.tokens.append(finding.token)
        self.generated_scores.add(finding)
        spent = self.generated_length >= self.budget
        self._stop()
        return self._ends(finding.token) or spent

    def _ends(self, token: int) -> bool:
        if self.params.termination_id is None:
            return token in self.end_tokens
        return token == self.termination_id

    def _stop(self) -> None:
        """Looks whether a stop word has just been completed, and takes it away again.

        Of the scores only the last goes with it, so that those of a longer stop word's other tokens
        stay: as in megatron-core, where the log probabilities then outnumber the tokens.
        """
        for word in self.stop_words:
            if self.generated_length >= len(word) and self.tokens[-len(word) :] == word:
                self.stopped = True
                if not self.params.detokenize_stop_sequence:
                    del self.tokens[-len(word) :]
                    self.generated_scores.drop_last()
                return

    def take_partial(self) -> dict[str, Any] | None:
        """The body of a partial reply, if enough tokens are unsent; they count as sent then."""
        params = self.params
        if not params.streaming:
            return None
        start, end = self.sent, max(self.sent, self.generated_length - self._held_back)
        if end - start < params.streaming_interval:
            return None
        self.sent = end
        tokens = self.tokens[self.prompt_length + start : self.prompt_length + end]
        partial: dict[str, Any] = {"request_id": self.request_id, "new_tokens": tokens}
        if params.return_log_probs:
            partial["new_log_probs"] = self.generated_scores.log_probs[start:end]
            # Not cut at the end, as in megatron-core: what is held back comes again.
            partial["new_top_n_logprobs"] = self.generated_scores.top_n[start:]
            if start == 0 and not params.skip_prompt_log_probs:
                partial["prompt_log_probs"] = list(self.prompt_scores.log_probs)
                partial["prompt_top_n_logprobs"] = list(self.prompt_scores.top_n)
        return partial

    @property
    def _held_back(self) -> int:
        """How many of the last tokens may turn out to be part of a stop word."""
        if self.params.detokenize_stop_sequence or not self.stop_words:
            return 0
        return max(map(len, self.stop_words)) - 1

    def finish(
        self, now: float, model: LanguageModel, handoff: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The body of the final reply.

        Args:
            now: the time in seconds.
            model: what makes text of the tokens.
            handoff: how another engine gets at the KV cache blocks.
        """
        self.events.append(EngineEvent(now, EventType.FINISH))
        generated = self.tokens[self.prompt_length :]
        wants_log_probs = self.params.return_log_probs
        wants_top_n = self.params.top_n_logprobs > 0
        return FinishedRequest(
            request_id=self.request_id,
            status=Status.COMPLETED,
            sampling_params=self.params.to_wire(
                budget=self.budget, termination_id=self.termination_id
            ),
            events=self.events,
            prompt=self._told_prompt(model),
            prompt_tokens=self.tokens[: self.prompt_length],
            returns_prompt_tokens=self.params.returns_prompt_tokens,
            generated_tokens=generated,
            generated_text=model.detokenize(self._shown(generated)),
            prompt_log_probs=self.prompt_scores.log_probs if wants_log_probs else None,
            generated_log_probs=self.generated_scores.log_probs if wants_log_probs else None,
            prompt_top_n_logprobs=self.prompt_scores.top_n if wants_top_n else None,
            generated_top_n_logprobs=self.generated_scores.top_n if wants_top_n else None,
            ttft=self.ttft,
            tpot=self.tpot,
            block_size_tokens=self.block_size_tokens,
            block_hashes=self.block_hashes,
            num_cached_tokens=self._known_tokens,
            epochs=self.epochs,
            handoff=handoff,
        ).to_wire()

    def _told_prompt(self, model: LanguageModel) -> str | None:
        """The prompt if it was text; where its ids always come back, the text of ids as well."""
        if self.prompt is None and "return_prompt_tokens" not in self.params.known:
            return model.detokenize(self.tokens[: self.prompt_length])
        return self.prompt

    @property
    def _known_tokens(self) -> int:
        if self.sequence is None:
            return self.num_cached_tokens
        return self.sequence.num_cached_tokens

    def _shown(self, generated: Sequence[int]) -> Sequence[int]:
        """The tokens without the end tokens that they end in, unless those were asked for."""
        length = len(generated)
        if not self.params.detokenize_stop_sequence:
            while length and generated[length - 1] in self.end_tokens:
                length -= 1
        return generated[:length]
