"""Many requests, and one channel for what becomes of them."""

from __future__ import annotations

from .group import RequestGroup as RequestGroup
from .group import check_request as check_request

__all__ = ["RequestGroup", "check_request"]
