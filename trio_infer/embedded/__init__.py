"""A coordinator in this process: for the first minute, for tests, for work without a cluster."""

from __future__ import annotations

from .faults import Faults as Faults
from .language_model import LanguageModel as LanguageModel
from .ngram import NgramModel as NgramModel
from .server import EmbeddedCoordinator as EmbeddedCoordinator
from .server import open_coordinator as open_coordinator
from .statistics import CoordinatorStatistics as CoordinatorStatistics
from .statistics import RunningRequest as RunningRequest
from .tokenizer import ModelTokenizer as ModelTokenizer

__all__ = [
    "CoordinatorStatistics",
    "EmbeddedCoordinator",
    "Faults",
    "LanguageModel",
    "ModelTokenizer",
    "NgramModel",
    "RunningRequest",
    "open_coordinator",
]
