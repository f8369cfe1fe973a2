"""What stays as it came until somebody looks."""

from __future__ import annotations

from typing import Any

import attrs
import msgpack

__all__ = ["Packed"]


@attrs.frozen(eq=False)
class Packed:
    """A long list, of lists most likely, whose bytes are known to be well-formed.

    Unpacked it may be millions of lists, which the collector of garbage would walk again and again.
    So it stays a part of the body that it came in, and keeps that alive: which takes less memory
    than what was unpacked of the rest.
    """

    _data: memoryview

    def unpack(self, *, use_list: bool = True) -> Any:
        """The list; or, for a passing use, tuples, which the collector soon leaves alone."""
        return msgpack.unpackb(self._data, raw=False, use_list=use_list)
