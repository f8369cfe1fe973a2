"""Language models in GGUF files, run by llama.cpp: the extra ``llama``."""

from __future__ import annotations

from .model import LlamaModel as LlamaModel

__all__ = ["LlamaModel"]
