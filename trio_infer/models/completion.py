"""What comes back: deltas while a request runs, a completion at its end."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from .handoff import KVHandoff
from .packed import Packed

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ARRAYS",
    "DEFAULTS",
    "Completion",
    "EpochSpan",
    "RequestEvent",
    "TokenDelta",
    "completion_of",
]


@attrs.frozen
class TokenDelta:
    """The tokens that arrived since the last delta. All deltas together make the completion.

    Attributes:
        tokens: token ids, one or more; none in a last delta that brings but ``text``.
        log_probs: the natural log probability of each of them, where asked for.
        top_n_logprobs: for each of them the likeliest tokens' text and log probability, where
            asked for.
        text: what has become certain of the text, which may be nothing; None without a tokenizer.
    """

    tokens: list[int]
    log_probs: list[float] | None = None
    top_n_logprobs: list[dict[str, float]] | None = None
    text: str | None = None


@attrs.frozen
class RequestEvent:
    """A thing that the engine noted about a request, in its own words.

    Attributes:
        timestamp: seconds since the epoch, by the engine's clock.
        type: such as ``ADD_ENGINE``, ``FINISH``, ``ERROR_TRANSIENT``.
        payload: what belongs to it, if anything.
    """

    timestamp: float
    type: str
    payload: Any = None


@attrs.frozen
class EpochSpan:
    """From which token on which generation epoch holds.

    Attributes:
        start: an index over prompt plus generated tokens.
        epoch: the epoch, as set by ``SET_GENERATION_EPOCH``.
    """

    start: int
    epoch: int


@attrs.frozen(kw_only=True, slots=False)  # see `completion_of`
class Completion:
    """A finished request. Optional fields are None where not asked for, or not known to the engine.

    Attributes:
        request_id: this client's number of the request.
        engine_request_id: the coordinator's number of it.
        generated_tokens: the generated token ids.
        generated_text: their text, as the coordinator's tokenizer says it.
        generated_length: how many they are.
        generated_log_probs: the natural log probability of each.
        generated_top_n_logprobs: for each the likeliest tokens' text and log probability.
        finish_reason: ``"error"`` if it failed, ``"abort"`` if this client ended it before its
            final reply came, ``"length"`` if it used up its budget, otherwise ``"stop"``.
        from_deltas: whether the engine had no last word, so that this is made of partial results
            alone: of `generate_within` only. Then all fields are unknown but the request's id, the
            generated tokens, their log probs and the times.
        latency: seconds from handing over the request to the arrival of its final reply, measured
            here; with ``from_deltas``, to the moment that it was given up.
        time_to_first_token: seconds from handing over the request to the arrival of its first
            tokens, measured here; None if none came before the final reply.
        status: the engine's: ``"COMPLETED"`` or ``"FAILED"``; ``"UNKNOWN"`` with ``from_deltas``.
        uid: the engine's name of the request, unique over its restarts.
        prompt: the prompt as the engine saw it, if it was text.
        prompt_length: in tokens.
        prompt_tokens: its token ids; only with ``return_prompt_tokens``.
        prompt_log_probs: of each prompt token but the first.
        prompt_top_n_logprobs: for each of them the likeliest tokens' text and log probability.
        ttft: the time to the first token in seconds, measured by the engine.
        tpot: the time of each further token in seconds, measured by the engine.
        events: what the engine noted.
        sampling_params: the parameters as the engine echoes them.
        policy_epoch: under which generation epochs the tokens were sampled.
        kv_cache_epoch: under which generation epochs their KV cache was computed.
        num_cached_tokens: how many prompt tokens were found in the prefix cache.
        routing_indices: of a mixture-of-experts model, as nested lists. Those of a large reply are
            made at the first look, which takes the longer the more they are; until then they take
            no more than the bytes that came. (Copying, comparing and pickling look as well.)
        kv_handoff: the KV cache blocks that the engine keeps for another deployment; of a prefill
            only.
        payload_offloaded: whether the engine put the payload elsewhere.
        extra: fields that this class does not know, but for those that are None, and for
            ``remaining_prompt_tokens``, which repeats the whole prompt.
    """

    request_id: int
    engine_request_id: int | None = None
    generated_tokens: list[int]
    generated_text: str | None = None
    generated_length: int
    generated_log_probs: list[float] | None = None
    generated_top_n_logprobs: list[dict[str, float]] | None = None
    finish_reason: Literal["stop", "length", "abort", "error"]
    from_deltas: bool = False
    latency: float
    time_to_first_token: float | None = None
    status: str
    uid: str | None = None
    prompt: str | None = None
    prompt_length: int | None = None
    prompt_tokens: list[int] | None = None
    prompt_log_probs: list[float] | None = None
    prompt_top_n_logprobs: list[dict[str, float]] | None = None
    ttft: float | None = None
    tpot: list[float] | None = None
    events: tuple[RequestEvent, ...] = ()
    sampling_params: Mapping[str, Any] | None = None
    policy_epoch: tuple[EpochSpan, ...] | None = None
    kv_cache_epoch: tuple[EpochSpan, ...] | None = None
    num_cached_tokens: int | None = None
    routing_indices: list[Any] | None = None
    kv_handoff: KVHandoff | None = None
    payload_offloaded: bool | None = None
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    _routing_dtype: str | None = attrs.field(default=None, repr=False, eq=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, _ROUTING_INDICES: self.routing_indices}

    @property
    def oldest_epoch(self) -> int | None:
        """The oldest epoch under which any of the generated tokens was sampled.

        None if there are no tokens, or if the epoch of one is unknown. Of a request that goes on
        from another these are its own tokens, and not those of the other.
        """
        spans, length = self.policy_epoch, self.prompt_length
        count = len(self.generated_tokens)
        if spans is None or length is None or not count:
            return None
        changes = (span.start - length for span in spans)
        places = {0, *(place for place in changes if 0 < place < count)}
        epochs = [epoch for place in places if (epoch := self.policy_epoch_of(place)) is not None]
        return min(epochs) if len(epochs) == len(places) else None

    def policy_epoch_of(self, index: int) -> int | None:
        """The epoch under which a generated token was sampled.

        Args:
            index: its place in ``generated_tokens``; a negative one counts from the end.

        Returns:
            The epoch; None if the engine told no epochs.

        Raises:
            IndexError: there is no such token.
        """
        return self._epoch_of(index, self.policy_epoch)

    def kv_cache_epoch_of(self, index: int) -> int | None:
        """The epoch under which a generated token's KV cache was computed, as `policy_epoch_of`."""
        return self._epoch_of(index, self.kv_cache_epoch)

    def _epoch_of(self, index: int, spans: tuple[EpochSpan, ...] | None) -> int | None:
        count = len(self.generated_tokens)
        if not -count <= operator.index(index) < count:
            msg = f"there are {count} generated tokens, and none at {index}"
            raise IndexError(msg)
        place = range(count)[index]
        if spans is None or self.prompt_length is None:
            return None
        started = [span for span in spans if span.start <= self.prompt_length + place]
        return started[-1].epoch if started else None

    def array(self, name: str) -> npt.NDArray[Any]:
        """A field that holds numbers, as a new NumPy array. NumPy has to be installed.

        Args:
            name: of the field: ``"generated_tokens"``, ``"prompt_tokens"`` (int64),
                ``"generated_log_probs"``, ``"prompt_log_probs"``, ``"tpot"`` (float64), or
                ``"routing_indices"`` (tokens, layers, top-k; of the engine's own dtype; no lists
                are made for it that are not there yet).

        Raises:
            ValueError: there is no such field, or this completion has none, or what the engine
                sent is no array.
            ImportError: NumPy is not installed.
        """
        if name not in ARRAYS:
            msg = f"no array is called {name!r}: there are {', '.join(ARRAYS)}"
            raise ValueError(msg)
        import numpy as np  # noqa: PLC0415 - an option of the caller's

        values = self.__dict__[name]
        if isinstance(values, Packed):
            values = values.unpack(use_list=False)
        if values is None:
            msg = f"this completion has no {name}: it was not asked for, or the engine has none"
            raise ValueError(msg)
        dtype = np.dtype(ARRAYS[name] or self._routing_dtype or "int64")
        try:
            array = np.asarray(values)
            fits = array.size == 0 or (
                array.dtype.kind in "biuf" and np.can_cast(array.dtype, dtype, "same_kind")
            )
            with np.errstate(over="ignore"):
                cast = array.astype(dtype) if fits else array
        except ValueError as error:
            msg = f"{name} is no array: {error}"
            raise ValueError(msg) from None
        if fits:  # rounding is the engine's own, anything else a mistake
            alike = np.isfinite if dtype.kind == "f" else np.asarray
            fits = bool(np.array_equal(alike(cast), alike(array)))
        if not fits:
            msg = f"{name} is no array of {dtype}: it holds other numbers"
            raise ValueError(msg)
        return cast


ARRAYS: Final[Mapping[str, str | None]] = {
    "generated_tokens": "int64",
    "prompt_tokens": "int64",
    "generated_log_probs": "float64",
    "prompt_log_probs": "float64",
    "tpot": "float64",
    "routing_indices": None,
}
"""The fields that hold arrays, and of what where the engine does not say it."""


_ROUTING_INDICES: Final = "routing_indices"


def _routing_indices(completion: Completion) -> Any:
    values = completion.__dict__[_ROUTING_INDICES]
    if isinstance(values, Packed):
        values = completion.__dict__[_ROUTING_INDICES] = values.unpack()
    return values


# To attrs, and to whoever looks, the field is as any other.
Completion.routing_indices = property(_routing_indices)  # type: ignore[assignment]

DEFAULTS: Final = {
    field.name: None if field.default is attrs.NOTHING else field.default
    for field in attrs.fields(Completion)
}
"""What the fields of a completion are that nobody has told; ``extra`` is for each its own."""


def completion_of(fields: dict[str, Any]) -> Completion:
    """A completion of all its fields, which are known to be right, and which it keeps.

    It takes a fifth of the time of the constructor, which sets them one by one.
    """
    completion = object.__new__(Completion)
    object.__setattr__(completion, "__dict__", fields)
    return completion
