"""What tests say to the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.peers import ScriptedCoordinator

__all__ = ["BYTES", "LONG", "to"]

BYTES = ("--stream", "--tokenizer", "bytes")
LONG = ("-n", "100000", "--top-k", "1")  # the likeliest tokens of the embedded model never end


def to(coordinator: ScriptedCoordinator) -> tuple[str, str]:
    return "--address", coordinator.address
