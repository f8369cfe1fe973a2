"""What tests of your own code want. The fixtures for pytest are in ``_trio_infer_pytest``."""

from __future__ import annotations

from ..embedded import Faults as Faults
from .aborting import assert_all_aborted as assert_all_aborted
from .memory import IN_MEMORY as IN_MEMORY

__all__ = ["IN_MEMORY", "Faults", "assert_all_aborted"]
