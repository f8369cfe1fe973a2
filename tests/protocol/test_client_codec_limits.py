"""Heads of replies that are as long as MessagePack lets them be, and ids that are none."""

from __future__ import annotations

import pytest

from trio_infer.protocol import client_codec
from trio_infer.protocol.client_codec import ClientCodec, ServerMessage
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS
from trio_infer.protocol.packing import MalformedMessage, pack

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


def usual_reply(dialect: Dialect, request_id: object) -> list[bytes]:
    head = pack([dialect.headers[Kind.ENGINE_REPLY], request_id])
    if dialect.layouts[Kind.ENGINE_REPLY].bodies:
        return [head, BODY]
    return [b"\x93" + head[1:] + BODY]


@EVERY
@pytest.mark.parametrize("request_id", [-1, True, 5.0, "5", None])
def test_no_request_gets_a_reply_whose_id_is_none(dialect: Dialect, request_id: object) -> None:
    with pytest.raises(MalformedMessage):
        ClientCodec(dialect).decode(usual_reply(dialect, request_id))


@EVERY
def test_heads_of_usual_replies_are_not_read_the_long_way(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(client_codec, "unpack")
    monkeypatch.delattr(client_codec, "unpack_head")
    message = ClientCodec(dialect).decode(usual_reply(dialect, 300))
    assert message == ServerMessage(Kind.ENGINE_REPLY, 300, BODY)


@EVERY
def test_a_reply_holds_up_nobody_with_its_body_until_somebody_reads_it(dialect: Dialect) -> None:
    codec, nonsense = ClientCodec(dialect), b"\xc1" * 1000
    number = dialect.headers[Kind.ENGINE_REPLY]
    is_framed = dialect.is_multipart
    frames = [pack([number, 7]), nonsense] if is_framed else [pack([number, 7, 0])[:-1] + nonsense]
    expected = ServerMessage(Kind.ENGINE_REPLY, 7, nonsense)
    assert codec._usual_reply(frames) == codec.decode(frames) == expected
