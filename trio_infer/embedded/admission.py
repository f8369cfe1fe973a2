"""Whether an engine takes a request on, and what it answers if not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .engine_request import EngineRequest
from .finished_request import (
    EngineEvent,
    EventType,
    FinishedRequest,
    Status,
    too_long,
    transfer_failed,
)
from .kv_blocks import check_handoff
from .request_params import RequestParams

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from ..complaints import Complaints
    from .language_model import LanguageModel, Traits
    from .prefix_cache import PrefixCache

__all__ = ["Handoff", "admit"]


class Handoff(NamedTuple):
    """What another engine has computed of a prompt, and where it is."""

    kv_meta: Mapping[str, Any]
    src_block_ids: Sequence[int]


def admit(
    request_id: int,
    prompt: str | list[int],
    sampling_params: Mapping[str, Any],
    *,
    known_params: Sequence[str],
    prefix_cache: PrefixCache | None,
    handoff: Handoff | None,
    salt: str | None,
    model: LanguageModel,
    traits: Traits,
    max_sequence_length: int,
    rng: random.Random,
    now: float,
    complaints: Complaints,
) -> EngineRequest | FinishedRequest:
    """The request as the engine decodes it, or, if it is refused, its failure.

    What makes no sense fails as a real engine fails it: without the prompt and without a reason on
    the wire, which is logged. What is too long fails with the reason as an event.
    """
    try:
        params = RequestParams.from_wire(sampling_params, known_params)
        tokens = _token_ids(prompt, params, model, traits)
        stop_words = [model.tokenize(word) for word in params.stop_words or ()]
    except ValueError as error:
        complaints.warn("request %d refused: %s", request_id, error)
        return FinishedRequest(
            request_id=request_id,
            status=Status.FAILED,
            sampling_params=sampling_params,
            events=[EngineEvent(now, EventType.FAIL)],
            returns_prompt_tokens="return_prompt_tokens" not in known_params,
        )
    end_token = model.end_token if params.termination_id is None else params.termination_id
    request = EngineRequest(
        request_id=request_id,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_length=len(tokens),
        tokens=tokens,
        params=params,
        budget=params.budget(prompt_length=len(tokens), max_sequence_length=max_sequence_length),
        termination_id=end_token,
        end_tokens=traits.end_tokens,
        stop_words=[word for word in stop_words if word],
        rng=rng,
        block_size_tokens=None if prefix_cache is None else prefix_cache.block_size,
        block_hashes=[] if prefix_cache is None else prefix_cache.hashes(tokens, salt=salt),
        events=[EngineEvent(now, EventType.ADD_ENGINE)],
    )
    complaint = None if handoff is None else check_handoff(tokens, *handoff)
    if complaint is not None:
        return _failure(request, transfer_failed(request_id, complaint, now), now)
    if request.budget < 0:
        return _failure(request, too_long(request_id, now), now)
    return request


def _token_ids(
    prompt: str | list[int], params: RequestParams, model: LanguageModel, traits: Traits
) -> list[int]:
    """The prompt as ids of the model's vocabulary, in a list of its own.

    Raises:
        ValueError: if it is empty, or has others.
    """
    if not prompt:
        msg = "the prompt is empty"
        raise ValueError(msg)
    if isinstance(prompt, str):
        tokens = model.tokenize(prompt)
        begin = [traits.begin_token]
        if params.add_bos or (traits.begins_prompts and tokens[:1] != begin):
            return begin + tokens
        if not tokens:
            msg = "the prompt has no tokens"
            raise ValueError(msg)
        return tokens
    if set(map(type, prompt)) != {int}:
        msg = "the prompt has items that are no token ids"
        raise ValueError(msg)
    if min(prompt) < 0 or max(prompt) >= model.vocab_size:
        msg = f"the prompt has token ids outside 0 to {model.vocab_size - 1}"
        raise ValueError(msg)
    return list(prompt)


def _failure(request: EngineRequest, reason: EngineEvent, now: float) -> FinishedRequest:
    events = [*request.events, reason, EngineEvent(now, EventType.FAIL)]
    return FinishedRequest(
        request_id=request.request_id,
        status=Status.FAILED,
        sampling_params=request.params.to_wire(
            budget=request.budget, termination_id=request.termination_id
        ),
        events=events,
        prompt=request.prompt,
        prompt_tokens=request.tokens,
        returns_prompt_tokens=request.params.returns_prompt_tokens,
    )
