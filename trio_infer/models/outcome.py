"""One of many requests, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, cast

import attrs

from .handoff import KVHandoff
from .prompt import Prompt
from .result import ResultT
from .sampling_params import SamplingParams, SupportsSerialize

__all__ = ["GenerateRequest", "Outcome"]


@attrs.frozen(eq=False)
class GenerateRequest:
    """What `InferenceClient.generate` takes, as one object. Checked when it is submitted.

    Args:
        prompt: text, or token ids as any sequence or array of ints.
        sampling_params: how to sample; None for the defaults. Requests that share one such object
            are packed faster.
        multi_modal_data: the media that the prompt speaks of.
        offload_params: passed on to the engine as they are.
        kv_handoff: what another deployment's `InferenceClient.prefill` has computed of this very
            prompt.
        tag: whatever you want to find again at its `Outcome`; stays here.
    """

    prompt: Prompt
    sampling_params: SamplingParams | SupportsSerialize | None = None
    multi_modal_data: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    offload_params: object = attrs.field(default=None, kw_only=True)
    kv_handoff: KVHandoff | None = attrs.field(default=None, kw_only=True)
    tag: Any = attrs.field(default=None, kw_only=True)


@attrs.frozen(eq=False)
class Outcome(Generic[ResultT]):
    """What became of one of many requests: a completion, or an error.

    Attributes:
        index: which request it was: the number that submitting returned; of an iterable's requests,
            their place in it.
        request: the request, as it was submitted.
        completion: what `InferenceClient.generate` would have returned; None if it failed.
        error: what `InferenceClient.generate` would have raised; None if it completed.
    """

    index: int
    request: GenerateRequest
    completion: ResultT | None = None
    error: Exception | None = None

    def unwrap(self) -> ResultT:
        """The completion; or raises the error."""
        if self.error is not None:
            raise self.error
        return cast("ResultT", self.completion)
