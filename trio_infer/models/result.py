"""What requests end in, for the type checker: it depends on how their client was opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from .completion import Completion

    # With a default, so that nobody has to write InferenceClient[Completion].
    ResultT = TypeVar("ResultT", default=Completion)
else:
    from typing import TypeVar

    ResultT = TypeVar("ResultT")

__all__ = ["ResultT"]
