"""Sampling parameters as a dialect takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..models import SamplingParams
from ..models.sampling_params import FIELD_NAMES

if TYPE_CHECKING:
    from .dialect import Dialect

__all__ = ["sampling_fields"]

_DEFAULTS: Final = SamplingParams().serialize()


def sampling_fields(
    params: SamplingParams, dialect: Dialect, *, streaming: bool = False
) -> dict[str, Any]:
    """The parameters to send, in a dict of its own.

    Args:
        params: what the caller asks for; its own ``streaming`` is ignored.
        dialect: what the coordinator speaks. Parameters that it lacks are left out.
        streaming: whether partial results are wanted, where the dialect has them.

    Raises:
        UnsupportedByDialect: a parameter that the dialect lacks is not at its default.
    """
    values = params.serialize() | {"streaming": streaming}
    if dialect.sampling_fields == FIELD_NAMES:
        return values
    for name in FIELD_NAMES:
        if name in dialect.sampling_fields or name == "streaming":
            continue
        if values[name] != _DEFAULTS[name]:
            dialect.refuse(f"sampling parameter {name}", f"leave it at {_DEFAULTS[name]!r}")
    known = {name: values.pop(name) for name in dialect.sampling_fields}
    return known | {name: value for name, value in values.items() if name not in FIELD_NAMES}
