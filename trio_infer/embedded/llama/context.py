"""llama.cpp's model and context, in the few calls that are needed here."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from .library import last_error, load_library, may_repack

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from ..language_model import Interruption

__all__ = ["BATCH_TOKENS", "Context", "Entry"]

BATCH_TOKENS: Final = 512
"""So many tokens are computed at once: llama.cpp's own measure for what it does in one go."""

_ABORTED: Final = 2


class Entry(NamedTuple):
    """A token to be computed: where it belongs, and whether it matters what follows it."""

    slot: int
    token: int
    place: int
    wanted: bool


class Context:
    """A model in memory, and the KV of some sequences. One thread at a time may use it.

    Args:
        path: of the GGUF file.
        context_length: how many tokens a sequence may have.
        max_sequences: how many sequences there may be.
        threads: how many threads compute.

    Raises:
        ImportError: llama_cpp is not installed.
        ValueError: llama.cpp cannot do anything with this file, or not so.
    """

    def __init__(
        self, path: Path, *, context_length: int, max_sequences: int, threads: int
    ) -> None:
        self.library: Any = load_library()
        library = self.library
        self._context: Any = None
        last_error()
        model_params = library.llama_model_default_params()
        model_params.use_extra_bufts = may_repack()
        self.model: Any = library.llama_model_load_from_file(os.fsencode(path), model_params)
        if not self.model:
            _refuse(f"llama.cpp cannot load {path}")
        try:
            if not library.llama_model_has_decoder(self.model) or library.llama_model_has_encoder(
                self.model
            ):
                _refuse(f"{path} is no model that continues texts")
            self.shares: bool = not (
                library.llama_model_is_recurrent(self.model)
                or library.llama_model_is_hybrid(self.model)
            )
            params = library.llama_context_default_params()
            params.n_ctx = context_length * max_sequences
            params.n_batch = params.n_ubatch = BATCH_TOKENS
            params.n_seq_max = max_sequences
            params.n_threads = params.n_threads_batch = threads
            params.kv_unified = False  # where others have theirs changes no sum then
            params.flash_attn_type = 0  # none, as llama_cpp's own class has it
            self._context = library.llama_init_from_model(self.model, params)
            if not self._context:
                _refuse(f"llama.cpp cannot make room for {max_sequences} sequences")
            self._memory = library.llama_get_memory(self._context)
            if not self._memory:  # such as one that makes embeddings
                _refuse(f"{path} is no model that continues texts")
        except BaseException:
            self.close()
            raise
        self._vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self.model))
        # C's strlen, of the two bytes of an Interruption: unlike Python's code it never waits.
        self._is_set = ctypes.cast(ctypes.CDLL(None).strlen, library.ggml_abort_callback)
        self._slots = np.zeros(BATCH_TOKENS, np.int32)
        first, width = self._slots.ctypes.data, self._slots.itemsize
        self._slot_pointers = np.arange(BATCH_TOKENS, dtype=np.uintp) * width + first
        self._ones = np.ones(BATCH_TOKENS, np.int32)

    def decode(self, entries: list[Entry], interruption: Interruption) -> bool:
        """Computes some tokens, in all their sequences at once. Returns whether it got there.

        If it did not, some may have been computed all the same: `keep` the others.

        Raises:
            RuntimeError: llama.cpp failed.
        """
        slots, tokens, places, wanted = zip(*entries, strict=True)
        self._slots[: len(slots)] = slots
        arrays = (
            np.array(tokens, np.int32),
            np.array(places, np.int32),
            np.array(wanted, np.int8),
        )
        library = self.library
        batch = library.llama_batch(
            n_tokens=len(entries),
            token=_pointer(arrays[0], library.llama_token),
            embd=None,
            pos=_pointer(arrays[1], library.llama_pos),
            n_seq_id=_pointer(self._ones, ctypes.c_int32),
            seq_id=_pointer(self._slot_pointers, ctypes.POINTER(library.llama_seq_id)),
            logits=_pointer(arrays[2], ctypes.c_int8),
        )
        flag = (ctypes.c_char * len(interruption.flag)).from_buffer(interruption.flag)
        library.llama_set_abort_callback(self._context, self._is_set, ctypes.addressof(flag))
        status = library.llama_decode(self._context, batch)
        if status not in (0, _ABORTED):
            msg = f"llama.cpp could not decode ({status}): {last_error() or 'no reason was given'}"
            raise RuntimeError(msg)
        return bool(status == 0)

    def logits(self, index: int) -> npt.NDArray[np.float32]:
        """What may follow the entry with that index in the last batch. It was wanted."""
        found = self.library.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(found, (self._vocab_size,)).copy()

    def keep(self, slot: int, length: int) -> bool:
        """Forgets all but the first tokens of a slot. Returns whether these are there still."""
        if length and self.library.llama_memory_seq_rm(self._memory, slot, length, -1):
            return True
        self.library.llama_memory_seq_rm(self._memory, slot, -1, -1)
        return length == 0

    def copy(self, source: int, target: int) -> None:
        """Lets an empty slot have all that another has."""
        self.library.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def close(self) -> None:
        """Frees everything."""
        if self._context:
            self.library.llama_free(self._context)
        if self.model:
            self.library.llama_model_free(self.model)
        self._context = self.model = None


def _pointer(array: npt.NDArray[Any], of: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(of))


def _refuse(what: str) -> None:
    reason = last_error()
    raise ValueError(f"{what}: {reason}" if reason else what)
