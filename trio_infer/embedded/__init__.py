"""A coordinator in this process: for the first minute, for tests, for work without a cluster."""

from __future__ import annotations

import typing

from .faults import Faults as Faults
from .language_model import CachingModel as CachingModel
from .language_model import Interruption as Interruption
from .language_model import LanguageModel as LanguageModel
from .language_model import ModelSequence as ModelSequence
from .language_model import Question as Question
from .ngram import NgramModel as NgramModel
from .received_request import ReceivedRequest as ReceivedRequest
from .server import EmbeddedCoordinator as EmbeddedCoordinator
from .server import open_coordinator as open_coordinator
from .statistics import CoordinatorStatistics as CoordinatorStatistics
from .statistics import RunningRequest as RunningRequest
from .tokenizer import ModelTokenizer as ModelTokenizer

if typing.TYPE_CHECKING:
    from .llama import LlamaModel as LlamaModel

__all__ = [
    "CachingModel",
    "CoordinatorStatistics",
    "EmbeddedCoordinator",
    "Faults",
    "Interruption",
    "LanguageModel",
    "LlamaModel",
    "ModelSequence",
    "ModelTokenizer",
    "NgramModel",
    "Question",
    "ReceivedRequest",
    "RunningRequest",
    "open_coordinator",
]


def __getattr__(name: str) -> object:
    # What few use costs nobody else a thing.
    if name == "LlamaModel":
        from .llama import LlamaModel  # noqa: PLC0415

        globals()[name] = LlamaModel
        return LlamaModel
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
