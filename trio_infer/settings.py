"""What a client is made of: the options of its doors, checked."""

from __future__ import annotations

import math
from typing import Any, Final

import attrs

from .client import InferenceClient
from .instruments import check_instruments
from .lifetime import Lifetime
from .models.scalars import to_count, to_flag, to_limit, to_seconds, to_text
from .protocol.client_codec import ClientCodec
from .protocol.detokenizing import Tokenizer, check_tokenizer
from .protocol.dialects import resolve_dialect
from .protocol.hashing import PrefixHashing
from .protocol.preparation import Preparation
from .sockets import Link, ZmqContext, check_address, check_context, check_socket_options

__all__ = ["Settings", "check_options"]


MAX_HEARTBEAT_SECONDS: Final = 86_400.0
"""ZeroMQ counts milliseconds in 32 bits; a day is as good as for ever."""


@attrs.frozen(kw_only=True)
class Settings:
    """What a client is made of, checked."""

    address: str
    preparation: Preparation
    deserialize: bool
    tokenizer: Tokenizer | None
    link: Link
    context: ZmqContext | None
    max_in_flight: int | None
    connect_timeout: float
    close_timeout: float
    instruments: tuple[object, ...]

    def make_lifetime(self) -> Lifetime:
        """The life of a new client."""
        return Lifetime(
            self.address,
            codec=self.preparation.codec,
            link=self.link,
            context=self.context,
            max_in_flight=self.max_in_flight,
            close_timeout=self.close_timeout,
            instruments=self.instruments,
        )

    def make_client(self, lifetime: Lifetime) -> InferenceClient[Any]:
        """The client that lives it."""
        return InferenceClient(
            lifetime,
            address=self.address,
            preparation=self.preparation,
            deserialize=self.deserialize,
            tokenizer=self.tokenizer,
        )


def check_options(
    address: object,
    *,
    dialect: object,
    deserialize: object,
    tokenizer: object,
    block_size_tokens: Any,
    prefix_caching_coordinator_policy: Any,
    connect_timeout: object,
    close_timeout: object,
    max_in_flight: object,
    heartbeat_timeout: object,
    max_message_size: object,
    socket_options: object,
    context: object,
    instruments: object,
) -> Settings:
    """Checks what `open_client` was given, which tells what it is, and raises what that raises."""
    return Settings(
        address=check_address(to_text(address, "address")),
        preparation=Preparation(
            ClientCodec(resolve_dialect(dialect)),
            PrefixHashing(block_size_tokens, prefix_caching_coordinator_policy),
        ),
        deserialize=to_flag(deserialize, "deserialize"),
        tokenizer=check_tokenizer(tokenizer),
        link=Link(
            heartbeat_timeout=to_seconds(
                heartbeat_timeout, "heartbeat_timeout", least=0.001, most=MAX_HEARTBEAT_SECONDS
            ),
            max_message_size=to_count(max_message_size, "max_message_size"),
            socket_options=check_socket_options(socket_options),
        ),
        context=check_context(context),
        max_in_flight=to_limit(max_in_flight, "max_in_flight"),
        connect_timeout=(
            math.inf if connect_timeout is None else to_seconds(connect_timeout, "connect_timeout")
        ),
        close_timeout=to_seconds(close_timeout, "close_timeout"),
        instruments=check_instruments(instruments),
    )
