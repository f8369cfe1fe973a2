"""The values that go in and come out: frozen, typed, and free of any I/O."""

from __future__ import annotations

from .completion import Completion as Completion
from .completion import EpochSpan as EpochSpan
from .completion import RequestEvent as RequestEvent
from .completion import TokenDelta as TokenDelta
from .events import ConnectionChange as ConnectionChange
from .events import ObservedRequest as ObservedRequest
from .events import RequestEnding as RequestEnding
from .events import RequestMoment as RequestMoment
from .events import SignalSent as SignalSent
from .handoff import KVHandoff as KVHandoff
from .outcome import GenerateRequest as GenerateRequest
from .outcome import Outcome as Outcome
from .prompt import Prompt as Prompt
from .sampling_params import SamplingParams as SamplingParams
from .sampling_params import SupportsSerialize as SupportsSerialize
from .statistics import ClientStatistics as ClientStatistics

__all__ = [
    "ClientStatistics",
    "Completion",
    "ConnectionChange",
    "EpochSpan",
    "GenerateRequest",
    "KVHandoff",
    "ObservedRequest",
    "Outcome",
    "Prompt",
    "RequestEnding",
    "RequestEvent",
    "RequestMoment",
    "SamplingParams",
    "SignalSent",
    "SupportsSerialize",
    "TokenDelta",
]
