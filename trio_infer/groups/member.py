"""One request of a group, and its inbox: its reply stays packed until somebody receives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from ..models import Outcome
from ..models.result import ResultT
from ..reply import Reply, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..models import GenerateRequest

__all__ = ["Member"]


class Member(Reply, Generic[ResultT]):
    """A request of a group, and its inbox.

    Args:
        terms: what it has in common with others.
        asked: the sampling parameters that were sent.
        request: as it was submitted.
        tell_end: told its index when it has ended.

    Attributes:
        index: its place in the group.
    """

    __slots__ = ("_request", "_tell", "index")

    def __init__(
        self,
        terms: Terms,
        asked: Mapping[str, Any],
        request: GenerateRequest,
        tell_end: Callable[[int], None],
    ) -> None:
        super().__init__(terms, asked)
        self.index: int = -1
        self._request = request
        self._tell = tell_end

    def _tell_end(self) -> None:
        self._tell(self.index)

    def outcome(self) -> Outcome[ResultT]:
        """What became of it, decoded here and now, and counted."""
        try:
            return Outcome(self.index, self._request, completion=self.result())
        except Exception as error:  # noqa: BLE001 - is the outcome
            plain = error.with_traceback(None)  # which would keep the reply for as long
            return Outcome(self.index, self._request, error=plain)
