"""llama.cpp by way of llama-cpp-python: whether it is there, and where its noise goes."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections import deque
from pathlib import Path
from typing import Any, Final

__all__ = ["last_error", "load_library", "may_repack"]

_logger: Final = logging.getLogger(__name__)

_ERROR: Final = 4
"""llama.cpp's level of errors; one more goes on with what came before."""

_errors: Final[deque[str]] = deque(maxlen=1)


@functools.cache
def load_library() -> Any:
    """The module ``llama_cpp``, ready for use; what it has to say goes to the log.

    Raises:
        ImportError: it is not installed, or cannot be loaded.
    """
    try:
        import llama_cpp  # noqa: PLC0415 - may be missing
    except (ImportError, OSError, RuntimeError) as error:  # or is there, and lacks a library itself
        msg = (
            f'models in GGUF files need llama-cpp-python ({error}): pip install "trio-infer[llama]"'
        )
        raise ImportError(msg) from error
    library: Any = llama_cpp
    library.trio_infer_log = library.llama_log_callback(_log)  # for as long as the library lives
    library.llama_log_set(library.trio_infer_log, ctypes.c_void_p(0))
    library.llama_backend_init()
    return library


def last_error() -> str:
    """The last error that llama.cpp has told of, which is then forgotten; empty if none."""
    return _errors.pop() if _errors else ""


def _log(level: int, text: bytes, _: object) -> None:
    line = text.decode(errors="replace").strip()
    if level == _ERROR and line:
        _errors.append(line)
    if line.strip("."):
        _logger.debug("%s", line)


def may_repack() -> bool:
    """Whether llama.cpp may lay weights out anew for the processor's matrix instructions.

    Not where AMX is offered by a virtual machine: some do not let it be used, and kill the process.
    """
    try:
        flags = Path("/proc/cpuinfo").read_text("ascii", "replace").split()
    except OSError:
        return True
    return not {"amx_tile", "hypervisor"} <= set(flags)
