"""How a request is to be sampled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import attrs

from .frozen import freeze_mapping, thaw
from .scalars import to_count, to_flag, to_float, to_int, to_probability, to_text

__all__ = ["SamplingParams", "SupportsSerialize", "to_sampling_params"]


@runtime_checkable
class SupportsSerialize(Protocol):
    """Anything that can say its sampling parameters, such as megatron-core's own class."""

    def serialize(self) -> dict[str, Any]:
        """The parameters by name."""
        ...  # pragma: no cover


_Normalizer: TypeAlias = Callable[[object, str], Any]


def _field(default: Any, normalize: _Normalizer, *, shown: bool = True) -> Any:
    return attrs.field(default=default, metadata={"normalize": normalize}, repr=shown)


_from_0: Final = partial(to_count, least=0)


def _optional(normalize: _Normalizer) -> _Normalizer:
    return lambda value, name: None if value is None else normalize(value, name)


def _stop_words(value: object, name: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        msg = f"{name} must be a list of str, not {type(value).__name__}"
        raise TypeError(msg)
    words = tuple(to_text(word, f"{name}[{index}]") for index, word in enumerate(value))
    if "" in words:
        msg = f"{name} must not contain an empty string"
        raise ValueError(msg)
    return words


@attrs.frozen(kw_only=True)
class SamplingParams:
    """Sampling parameters, with megatron-core's names and defaults. Immutable all through.

    One object may serve any number of requests at once. Numbers may be NumPy scalars.

    Args:
        temperature: divides the logits; 1.0 samples from the model's own distribution.
        top_k: sample among the k likeliest tokens; 0 for no such limit, 1 for greedy decoding.
        top_p: sample among the likeliest tokens that together reach this probability, in [0, 1];
            0.0 for no such limit. Not together with ``top_k``.
        return_log_probs: return the natural logarithm of each token's probability.
        skip_prompt_log_probs: of generated tokens only.
        return_segments: return individually detokenized tokens, where the engine can.
        num_tokens_to_generate: the budget of generated tokens.
        num_tokens_total: the budget of prompt and generated tokens together. Not together with
            ``num_tokens_to_generate``.
        termination_id: the token id that ends a generation; None for the model's own.
        top_n_logprobs: return the log probs of the n likeliest tokens at each position; wants
            ``return_log_probs``.
        return_prompt_top_n_logprobs: deprecated, and derived: true when ``top_n_logprobs > 0`` and
            not ``skip_prompt_log_probs``.
        add_BOS: put the beginning-of-sequence token before a text prompt.
        stop_words: strings that end a generation.
        detokenize_stop_sequence: keep the stop word in the text.
        return_prompt_tokens: return the ids of the prompt.
        streaming: set by this client on what it sends; whatever stands here is ignored.
        streaming_interval: how many tokens at least the engine sends at a time, from 1.
        do_kv_handoff: keep the KV cache blocks for another deployment; set by this client.
        extra: parameters that newer engines know, by name, with values that MessagePack can carry.

    Raises:
        TypeError: a parameter is of the wrong type.
        ValueError: a parameter is out of its range, or two of them exclude each other.
    """

    temperature: float = _field(1.0, to_float)
    top_k: int = _field(0, _from_0)
    top_p: float = _field(0.0, to_probability)
    return_log_probs: bool = _field(default=False, normalize=to_flag)
    skip_prompt_log_probs: bool = _field(default=False, normalize=to_flag)
    return_segments: bool = _field(default=False, normalize=to_flag)
    num_tokens_to_generate: int | None = _field(None, _optional(_from_0))
    num_tokens_total: int | None = _field(None, _optional(_from_0))
    termination_id: int | None = _field(None, _optional(to_int))
    top_n_logprobs: int = _field(0, _from_0)
    _return_prompt_top_n_logprobs: bool = _field(default=False, normalize=to_flag, shown=False)
    add_BOS: bool = _field(default=False, normalize=to_flag)
    stop_words: Sequence[str] | None = _field(None, _optional(_stop_words))
    detokenize_stop_sequence: bool = _field(default=False, normalize=to_flag)
    return_prompt_tokens: bool = _field(default=False, normalize=to_flag)
    streaming: bool = _field(default=False, normalize=to_flag)
    streaming_interval: int = _field(1, to_count)
    do_kv_handoff: bool = _field(default=False, normalize=to_flag)
    extra: Mapping[str, Any] = attrs.field(factory=dict, metadata={"normalize": freeze_mapping})

    def __attrs_post_init__(self) -> None:
        for attribute, name, normalize in _NORMALIZERS:
            object.__setattr__(self, attribute, normalize(getattr(self, attribute), name))
        self._check_combinations()
        if self._return_prompt_top_n_logprobs:
            warnings.warn(
                "return_prompt_top_n_logprobs is deprecated; leave it out, and set "
                "skip_prompt_log_probs where the prompt's are not wanted",
                DeprecationWarning,
                stacklevel=3,
            )

    @property
    def return_prompt_top_n_logprobs(self) -> bool:
        """Whether the prompt's log probs come with the likeliest tokens: derived from the others.

        What was asked for is kept apart, so that `attrs.evolve` does not ask for it on its own.
        """
        return self.top_n_logprobs > 0 and not self.skip_prompt_log_probs

    def _check_combinations(self) -> None:
        complaint = next((text for check, text in _REFUSALS if check(self)), None)
        if complaint is not None:
            raise ValueError(complaint)

    def serialize(self) -> dict[str, Any]:
        """The parameters by name, in megatron-core's order, those of ``extra`` last."""
        values = {name: getattr(self, name) for name in FIELD_NAMES}
        if self.stop_words is not None:
            values["stop_words"] = list(self.stop_words)
        values.update(thaw(self.extra))
        return values


_NORMALIZERS: Final = tuple(
    (field.name, field.name.removeprefix("_"), field.metadata["normalize"])
    for field in attrs.fields(SamplingParams)
)
FIELD_NAMES: Final = tuple(name for _, name, _ in _NORMALIZERS if name != "extra")

_REFUSALS: Final[tuple[tuple[Callable[[SamplingParams], bool], str], ...]] = (
    (
        lambda p: p.num_tokens_to_generate is not None and p.num_tokens_total is not None,
        "num_tokens_to_generate and num_tokens_total exclude each other: give one budget",
    ),
    (
        lambda p: p.top_k > 0 and p.top_p > 0.0,
        "top_k and top_p exclude each other: give one of them",
    ),
    (
        lambda p: p.top_n_logprobs > 0 and not p.return_log_probs,
        "top_n_logprobs wants return_log_probs=True as well",
    ),
    (
        lambda p: p._return_prompt_top_n_logprobs and p.skip_prompt_log_probs,  # noqa: SLF001
        "return_prompt_top_n_logprobs and skip_prompt_log_probs exclude each other: give one",
    ),
    (
        lambda p: not p.extra.keys().isdisjoint(FIELD_NAMES),
        "extra must not name a parameter that SamplingParams has as an argument: give it as that",
    ),
)


_DEFAULTS: Final = SamplingParams()


def to_sampling_params(value: SamplingParams | SupportsSerialize | None) -> SamplingParams:
    """What a caller gave for sampling parameters, as a `SamplingParams`; None for the defaults.

    An object with ``serialize()`` is asked once and never changed.

    Raises:
        TypeError: for what is none of these, or a parameter of the wrong type.
        ValueError: for parameters that `SamplingParams` refuses.
    """
    if value is None:
        return _DEFAULTS
    if isinstance(value, SamplingParams) and type(value).serialize is SamplingParams.serialize:
        return value
    serialized = _serialized(value)
    if not isinstance(serialized, Mapping):
        msg = f"serialize() must return a mapping, not {type(serialized).__name__}"
        raise TypeError(msg)
    known = {name: serialized[name] for name in FIELD_NAMES if name in serialized}
    known.pop("return_prompt_top_n_logprobs", None)  # derived here, and there as well
    extra = {name: item for name, item in serialized.items() if name not in FIELD_NAMES}
    return SamplingParams(**known, extra=extra)


def _serialized(value: object) -> object:
    if isinstance(value, type) or not isinstance(value, SupportsSerialize):
        kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        msg = f"sampling_params must be a SamplingParams, or have serialize(), not {kind}"
        raise TypeError(msg)
    return value.serialize()
