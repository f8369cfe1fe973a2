"""Going on with what was cut short: the request for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from .errors import ConnectionLost, RemoteProtocolError, RequestFailed
from .models import Completion, GenerateRequest
from .models.sampling_params import to_sampling_params
from .protocol.prompt import coerce_prompt
from .streams import CompletionStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .models import Prompt, SamplingParams, SupportsSerialize

__all__ = ["continue_from"]


def continue_from(
    cut_short: Completion | CompletionStream[Any] | ConnectionLost,
    prompt: Prompt,
    sampling_params: SamplingParams | SupportsSerialize | None = None,
    *,
    multi_modal_data: Mapping[str, Any] | None = None,
    offload_params: object = None,
    tag: Any = None,
) -> GenerateRequest:
    """A request for the rest of one that was cut short.

    Its prompt is the ids of the first one's prompt and the tokens so far, its budget what is left
    of the first one's, and its other sampling parameters are the same. Of its completion the
    ``generated_tokens`` are the rest alone. Nothing is sent.

    Args:
        cut_short: what there is of the first request: its completion; its stream, once it has
            ended or its block has been left; or the error that a lost connection left, with the
            tokens that it carries.
        prompt: of the first request. Text will do if the ids are known all the same: from a
            completion with ``return_prompt_tokens``; or if there are no tokens yet.
        sampling_params: of the first request. Another budget is taken for that of both together.
            An object with ``serialize()`` is asked once, here.
        multi_modal_data: of the first request.
        offload_params: of the first request.
        tag: as `GenerateRequest` has it.

    Raises:
        TypeError: for a wrong argument.
        ValueError: for a wrong argument; or for what cannot be continued, since it has ended by
            itself, or failed, or still runs, since nothing is left of its budget, or since its
            prompt is text whose ids are unknown.
    """
    params = to_sampling_params(sampling_params)
    begun = coerce_prompt(prompt)
    tokens, completion = _so_far(cut_short)
    _check_end(tokens, params, completion)
    _check_budget(params.num_tokens_to_generate, len(tokens), len(tokens))
    if tokens:
        if isinstance(begun, str):
            begun = _prompt_tokens(completion)
        begun = [*begun, *tokens]
    return GenerateRequest(
        begun,
        _rest(params, len(tokens), 0 if isinstance(begun, str) else len(begun)),
        multi_modal_data=multi_modal_data,
        offload_params=offload_params,
        tag=tag,
    )


def _so_far(cut_short: object) -> tuple[list[int], Completion | None]:
    """The tokens, and what the engine said at the end of it, if it did."""
    if isinstance(cut_short, ConnectionLost):
        return list(cut_short.tokens), None
    completion = cut_short
    if isinstance(cut_short, CompletionStream):
        completion = cut_short.completion
        if completion is None:
            return _left(cut_short), None
        if not isinstance(completion, Completion):
            msg = "this needs completions: open the client with deserialize=True"
            raise ValueError(msg)  # noqa: TRY004 - the stream is of the right type
    if not isinstance(completion, Completion):
        what = "a Completion, a CompletionStream or a ConnectionLost"
        msg = f"cut_short must be {what}, not {type(cut_short).__name__}"
        raise TypeError(msg)
    if completion.finish_reason == "error":
        raise _failed()
    if len(completion.generated_tokens) < completion.generated_length:
        msg = "the completion lacks tokens that were generated"
        raise ValueError(msg)
    return completion.generated_tokens, completion


def _left(stream: CompletionStream[Any]) -> list[int]:
    """The tokens of a stream that has no completion."""
    error = stream.error
    if isinstance(error, RequestFailed | RemoteProtocolError):
        raise _failed() from error
    if isinstance(error, ConnectionLost):
        return list(error.tokens)
    if not stream.closed:
        msg = "the stream still runs: leave its block, or await finish_early(), first"
        raise ValueError(msg)
    return stream.tokens


def _failed() -> ValueError:
    return ValueError("the request has failed: there is nothing to go on from")


def _check_end(tokens: list[int], params: SamplingParams, completion: Completion | None) -> None:
    """Raises `ValueError` if it has ended by itself, be it in the moment that it was aborted."""
    echoed = None if completion is None else completion.sampling_params
    ends = (params.termination_id, (echoed or {}).get("termination_id"))
    stopped = completion is not None and completion.finish_reason == "stop"
    if stopped or (tokens and tokens[-1] in ends):
        msg = "the request has ended by itself: there is no more to it"
        raise ValueError(msg)


def _check_budget(budget: int | None, used: int, generated: int) -> None:
    if budget is not None and used >= budget:
        msg = f"nothing is left of the budget: there are {generated} tokens"
        raise ValueError(msg)


def _prompt_tokens(completion: Completion | None) -> list[int]:
    if completion is None or completion.prompt_tokens is None:
        msg = (
            "the ids of this text are unknown: give the prompt as token ids, or ask for them by "
            "return_prompt_tokens=True, and go on from a completion of the engine's"
        )
        raise ValueError(msg)
    return completion.prompt_tokens


def _rest(params: SamplingParams, generated: int, total: int) -> SamplingParams:
    """The parameters for what is left of the budget.

    Args:
        params: of the whole.
        generated: how many tokens there are.
        total: how many with the prompt; 0 for text.
    """
    budget = params.num_tokens_to_generate
    _check_budget(params.num_tokens_total, total, generated)
    if budget is None:
        return params
    return attrs.evolve(params, num_tokens_to_generate=budget - generated)
