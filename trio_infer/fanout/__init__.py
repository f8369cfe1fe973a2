"""Many requests for one purpose: all of them, the first that will do, the best, the fastest."""

from __future__ import annotations

from .choosing import Scored as Scored
from .choosing import best_of as best_of
from .choosing import race as race
from .completing import as_completed as as_completed
from .completing import gather as gather
from .hedging import hedge as hedge

__all__ = ["Scored", "as_completed", "best_of", "gather", "hedge", "race"]
