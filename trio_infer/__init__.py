"""A trio client for the Megatron-Core inference coordinator.

PYTEST_DONT_REWRITE: there is a plugin for pytest beside this, and where the package is imported
before pytest starts, pytest would warn that it cannot rewrite its assertions. It has none.
"""

from __future__ import annotations

from .client import InferenceClient as InferenceClient
from .continuing import continue_from as continue_from
from .deadlines import generate_within as generate_within
from .engines import EngineControl as EngineControl
from .errors import ConnectError as ConnectError
from .errors import ConnectionLost as ConnectionLost
from .errors import ConnectTimeout as ConnectTimeout
from .errors import InferenceError as InferenceError
from .errors import LocalProtocolError as LocalProtocolError
from .errors import NoneAccepted as NoneAccepted
from .errors import ProtocolError as ProtocolError
from .errors import RemoteProtocolError as RemoteProtocolError
from .errors import RequestFailed as RequestFailed
from .errors import UnsupportedByDialect as UnsupportedByDialect
from .fanout import Scored as Scored
from .fanout import as_completed as as_completed
from .fanout import best_of as best_of
from .fanout import gather as gather
from .fanout import hedge as hedge
from .fanout import race as race
from .groups import RequestGroup as RequestGroup
from .instruments import Instrument as Instrument
from .models import ClientStatistics as ClientStatistics
from .models import Completion as Completion
from .models import ConnectionChange as ConnectionChange
from .models import EpochSpan as EpochSpan
from .models import GenerateRequest as GenerateRequest
from .models import KVHandoff as KVHandoff
from .models import ObservedRequest as ObservedRequest
from .models import Outcome as Outcome
from .models import Prompt as Prompt
from .models import RequestEnding as RequestEnding
from .models import RequestEvent as RequestEvent
from .models import RequestMoment as RequestMoment
from .models import SamplingParams as SamplingParams
from .models import SignalSent as SignalSent
from .models import SupportsSerialize as SupportsSerialize
from .models import TokenDelta as TokenDelta
from .opening import ClientOptions as ClientOptions
from .opening import connect_client as connect_client
from .opening import open_client as open_client
from .protocol.detokenizing import Tokenizer as Tokenizer
from .protocol.dialect import Dialect as Dialect
from .protocol.dialects import DIALECTS as DIALECTS
from .protocol.hashing import PrefixCachingCoordinatorPolicy as PrefixCachingCoordinatorPolicy
from .sockets import SocketOptions as SocketOptions
from .streams import CompletionStream as CompletionStream

__all__ = [
    "DIALECTS",
    "ClientOptions",
    "ClientStatistics",
    "Completion",
    "CompletionStream",
    "ConnectError",
    "ConnectTimeout",
    "ConnectionChange",
    "ConnectionLost",
    "Dialect",
    "EngineControl",
    "EpochSpan",
    "GenerateRequest",
    "InferenceClient",
    "InferenceError",
    "Instrument",
    "KVHandoff",
    "LocalProtocolError",
    "NoneAccepted",
    "ObservedRequest",
    "Outcome",
    "PrefixCachingCoordinatorPolicy",
    "Prompt",
    "ProtocolError",
    "RemoteProtocolError",
    "RequestEnding",
    "RequestEvent",
    "RequestFailed",
    "RequestGroup",
    "RequestMoment",
    "SamplingParams",
    "Scored",
    "SignalSent",
    "SocketOptions",
    "SupportsSerialize",
    "TokenDelta",
    "Tokenizer",
    "UnsupportedByDialect",
    "as_completed",
    "best_of",
    "connect_client",
    "continue_from",
    "gather",
    "generate_within",
    "hedge",
    "open_client",
    "race",
]
