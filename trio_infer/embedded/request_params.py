"""The sampling parameters of a request, as an engine understands and echoes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from ..models.sampling_params import FIELD_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["RequestParams"]

_Attribute: TypeAlias = "attrs.Attribute[Any]"


def _check(what: str, accepts: Callable[[Any], bool]) -> Callable[[object, _Attribute, Any], None]:
    """A validator that says what was expected."""

    def validate(_: object, attribute: _Attribute, value: object) -> None:
        if not accepts(value):
            msg = f"{attribute.alias} must be {what}, not {value!r:.80}"
            raise ValueError(msg)

    return validate


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


_flag = _check("true or false", lambda value: type(value) is bool)
_count = _check("an int of at least 0", lambda value: _is_int(value) and value >= 0)
_positive = _check("an int of at least 1", lambda value: _is_int(value) and value >= 1)
_optional_int = _check("an int or nothing", lambda value: value is None or _is_int(value))
_temperature = _check(
    "a finite number of at least 0",
    lambda value: _is_number(value) and math.isfinite(value) and value >= 0,
)
_share = _check("between 0 and 1", lambda value: _is_number(value) and 0 <= value <= 1)
_texts = _check(
    "a list of strings, or nothing",
    lambda value: (
        value is None
        or (isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value))
    ),
)


@attrs.frozen(kw_only=True)
class RequestParams:
    """What a client may ask of an engine: megatron-core's fields, and whatever else it sent.

    Raises:
        ValueError: for values, or combinations, that an engine refuses.
    """

    temperature: float = attrs.field(default=1.0, validator=_temperature)
    top_k: int = attrs.field(default=0, validator=_count)
    top_p: float = attrs.field(default=0.0, validator=_share)
    return_log_probs: bool = attrs.field(default=False, validator=_flag)
    skip_prompt_log_probs: bool = attrs.field(default=False, validator=_flag)
    return_segments: bool = attrs.field(default=False, validator=_flag)
    num_tokens_to_generate: int | None = attrs.field(default=None, validator=_optional_int)
    num_tokens_total: int | None = attrs.field(default=None, validator=_optional_int)
    termination_id: int | None = attrs.field(default=None, validator=_optional_int)
    top_n_logprobs: int = attrs.field(default=0, validator=_count)
    return_prompt_top_n_logprobs: bool = attrs.field(default=False, validator=_flag)
    add_bos: bool = attrs.field(default=False, validator=_flag, alias="add_BOS")
    stop_words: list[str] | None = attrs.field(default=None, validator=_texts)
    detokenize_stop_sequence: bool = attrs.field(default=False, validator=_flag)
    return_prompt_tokens: bool = attrs.field(default=False, validator=_flag)
    streaming: bool = attrs.field(default=False, validator=_flag)
    streaming_interval: int = attrs.field(default=1, validator=_positive)
    do_kv_handoff: bool = attrs.field(default=False, validator=_flag)
    others: dict[str, Any] = attrs.field(factory=dict)
    known: Sequence[str] = FIELD_NAMES

    def __attrs_post_init__(self) -> None:
        # Each of these trips an assertion of the real engine, at admission or in its sampler.
        refused = {
            "num_tokens_to_generate and num_tokens_total at once": (
                self.num_tokens_to_generate is not None and self.num_tokens_total is not None
            ),
            "top_k and top_p at once": self.top_k > 0 and self.top_p > 0,
            "top_n_logprobs without return_log_probs": (
                self.top_n_logprobs > 0 and not self.return_log_probs
            ),
        }
        for what, asked in refused.items():
            if asked:
                raise ValueError(what)

    @classmethod
    def from_wire(
        cls, fields: Mapping[str, Any], known: Sequence[str] = FIELD_NAMES
    ) -> RequestParams:
        """What a client sent.

        Args:
            fields: that.
            known: the parameters that the engine knows. Others are kept, as a real engine keeps
                them, without any effect.
        """
        understood = {name: value for name, value in fields.items() if name in known}
        others = {name: value for name, value in fields.items() if name not in known}
        return cls(**understood, others=others, known=known)

    @property
    def wants_prompt_log_probs(self) -> bool:
        """Whether the prompt's own tokens are scored."""
        return self.return_log_probs and not self.skip_prompt_log_probs

    @property
    def returns_prompt_tokens(self) -> bool:
        """Whether the prompt's ids come back: always, before there was such a parameter."""
        return self.return_prompt_tokens or "return_prompt_tokens" not in self.known

    def budget(self, *, prompt_length: int, max_sequence_length: int) -> int:
        """How many tokens may be generated; -1 where there is no room for any.

        Without a budget the sequence may grow as long as the engine lets it; one that is too large
        is cut to that, as real engines do.
        """
        room = max_sequence_length - prompt_length
        if self.num_tokens_total is not None:
            room = min(room, self.num_tokens_total - prompt_length)
        if self.num_tokens_to_generate is not None:
            room = min(room, self.num_tokens_to_generate)
        return max(room, -1)

    def to_wire(self, *, budget: int, termination_id: int) -> dict[str, Any]:
        """The parameters as a finished request repeats them, with what was open filled in."""
        fields = {name: getattr(self, _NAMES[name]) for name in self.known}
        return (
            fields
            | {
                "num_tokens_to_generate": budget,
                "num_tokens_total": None,
                "termination_id": termination_id,
                "return_prompt_top_n_logprobs": (
                    self.top_n_logprobs > 0 and not self.skip_prompt_log_probs
                ),
            }
            | self.others
        )


_NAMES = {
    attribute.alias: attribute.name
    for attribute in attrs.fields(RequestParams)
    if attribute.alias in FIELD_NAMES
}
"""The name of each field on the wire, in its order there, and here."""
