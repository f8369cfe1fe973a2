"""What was recorded from the peer, or computed from its protocol: the files in ``vectors``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgpack

__all__ = ["file_names", "read_bytes", "read_frame", "read_json", "read_vectors"]

_DIRECTORY: Final = Path(__file__).parent / "vectors"


def file_names(pattern: str) -> list[str]:
    """The names of the files that match, without their suffix."""
    names = sorted(path.stem for path in _DIRECTORY.glob(pattern))
    assert names, f"no vector is called {pattern}"
    return names


def read_json(name: str) -> dict[str, Any]:
    """All of a JSON file."""
    content: dict[str, Any] = json.loads((_DIRECTORY / f"{name}.json").read_text("utf-8"))
    return content


def read_vectors(name: str) -> list[dict[str, Any]]:
    """The vectors of a JSON file."""
    vectors: list[dict[str, Any]] = read_json(name)["vectors"]
    return vectors


def read_bytes(name: str) -> bytes:
    """The one frame of a recorded reply, as it came."""
    return (_DIRECTORY / f"{name}.msgpack").read_bytes()


def read_frame(name: str) -> list[Any]:
    """What is in it: its header, the client's id, its body."""
    frame: list[Any] = msgpack.unpackb(read_bytes(name))
    return frame
