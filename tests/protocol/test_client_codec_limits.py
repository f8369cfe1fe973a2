"""Heads of replies that are as long as MessagePack lets them be."""

from __future__ import annotations

import pytest

from trio_infer.protocol.client_codec import ClientCodec, ServerMessage
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS
from trio_infer.protocol.packing import pack

BODY = pack({"status": "COMPLETED", "generated_tokens": [1, 2]})

EVERY = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)


def long_list(length: int) -> bytes:
    return b"\xdd" + length.to_bytes(4, "big")


def long_int(number: int) -> bytes:
    return b"\xcf" + number.to_bytes(8, "big")


def reply(dialect: Dialect, kind: Kind, request_id: int) -> list[bytes]:
    numbers = long_int(dialect.headers[kind]) + long_int(request_id)
    if dialect.layouts[kind].bodies:
        return [long_list(2) + numbers, BODY]
    return [long_list(3) + numbers + BODY]


@EVERY
@pytest.mark.parametrize("request_id", [0, 2**64 - 1])
def test_a_reply_is_read_in_whatever_lengths_its_numbers_were_packed(
    dialect: Dialect, request_id: int
) -> None:
    for kind in (Kind.ENGINE_REPLY, Kind.ENGINE_REPLY_PARTIAL):
        if kind in dialect.headers:
            message = ClientCodec(dialect).decode(reply(dialect, kind, request_id))
            assert message == ServerMessage(kind, request_id, BODY)


@EVERY
def test_a_handshake_ends_in_whatever_lengths_its_numbers_were_packed(dialect: Dialect) -> None:
    ack = long_list(1) + long_int(dialect.headers[Kind.CONNECT_ACK])
    assert ClientCodec(dialect).decode([ack]) == ServerMessage(Kind.CONNECT_ACK)
