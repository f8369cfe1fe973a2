"""A coordinator that sends nonsense: it costs at most the request that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import trio
import trio.lowlevel

from tests.peers import ScriptedCoordinator, finished, scripted_coordinator
from tests.waiting import settled, until
from trio_infer import InferenceClient, RemoteProtocolError, SamplingParams, open_client, reception
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS
from trio_infer.protocol.packing import Frames, pack

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = SamplingParams(num_tokens_to_generate=1000)
GOOD = pack(finished([2]))
PARTIAL = Kind.ENGINE_REPLY_PARTIAL


def message(dialect: Dialect, head: bytes, body: bytes = GOOD) -> Frames:
    """A header and an id, packed, and a body."""
    if dialect.is_multipart:
        return [b"\x92" + head, body]
    return [b"\x93" + head + body]


def reply(dialect: Dialect, request_id: bytes = b"\x00", body: bytes = GOOD) -> Frames:
    return message(dialect, pack(dialect.headers[Kind.ENGINE_REPLY]) + request_id, body)


def cut(dialect: Dialect) -> Frames:
    frames = reply(dialect)
    return [*frames[:-1], frames[-1][:-1]]


def with_field(field: bytes) -> Callable[[Dialect], Frames]:
    """A reply whose body has one more field."""
    body = bytes([GOOD[0] + 1]) + GOOD[1:] + field
    return lambda dialect: reply(dialect, body=body)


BLAMELESS: dict[str, Callable[[Dialect], Frames]] = {
    "no frame with anything in it": lambda _: [b""],
    "no MessagePack": lambda _: [b"\xc1"],
    "a map": lambda _: [b"\x80"],
    "an empty list": lambda _: [b"\x90"],
    "a header that nobody knows": lambda dialect: message(dialect, b"\x63\x00"),
    "a header that is a float": lambda dialect: message(
        dialect, pack(float(dialect.headers[Kind.ENGINE_REPLY])) + b"\x00"
    ),
    "a header that is a bool": lambda dialect: message(dialect, b"\xc3\x00"),
    "a client's own message": lambda dialect: message(
        dialect, pack(dialect.headers[Kind.SUBMIT_REQUEST]) + b"\x00"
    ),
    "an id that is a float": lambda dialect: reply(dialect, pack(0.0)),
    "an id that is a bool": lambda dialect: reply(dialect, b"\xc2"),
    "an id that is text": lambda dialect: reply(dialect, pack("0")),
    "an id that is bytes": lambda dialect: reply(dialect, pack(b"\0")),
    "an id that is a list": lambda dialect: reply(dialect, b"\x91\x00"),
    "an id that is nothing": lambda dialect: reply(dialect, b"\xc0"),
    "a negative id": lambda dialect: reply(dialect, b"\xff"),
    "an id that is an extension": lambda dialect: reply(dialect, b"\xd4\x05\x00"),
    "an id that is a timestamp": lambda dialect: reply(dialect, pack(msgpack.Timestamp(0))),
    "an id never sent": lambda dialect: reply(dialect, b"\x63"),
    "the largest id": lambda dialect: reply(dialect, pack(2**64 - 1)),
    "a head of a thousand bytes": lambda dialect: reply(dialect, pack("x" * 1000)),
    "a head cut short": lambda dialect: [reply(dialect)[0][:2]],
    "a head that declares too much": lambda dialect: reply(dialect, b"\xdd\xff\xff\xff\xff"),
    "a second end of the handshake": lambda dialect: [pack([dialect.headers[Kind.CONNECT_ACK]])],
    "an end of the handshake with something in it": lambda dialect: [
        pack([dialect.headers[Kind.CONNECT_ACK], 0])
    ],
}
BLAMED: dict[str, Callable[[Dialect], Frames]] = {
    "a frame too many": lambda dialect: [*reply(dialect), b"\x80"],
    "a thousand frames": lambda dialect: [*reply(dialect), *[b"\x80"] * 1000],
    "a field too many": lambda dialect: [
        pack([dialect.headers[Kind.ENGINE_REPLY], 0, 1, 2, 3]),
        GOOD,
    ],
    "no body": lambda dialect: [pack([dialect.headers[Kind.ENGINE_REPLY], 0])],
    "no body of a partial result": lambda dialect: [
        pack(
            [dialect.headers.get(Kind.ENGINE_REPLY_PARTIAL, dialect.headers[Kind.ENGINE_REPLY]), 0]
        )
    ],
    "a body cut short": cut,
    "bytes behind the body": lambda dialect: reply(dialect, body=GOOD + b"\xc0"),
    "an empty body": lambda dialect: reply(dialect, body=b""),
    "a body that is no map": lambda dialect: reply(dialect, body=b"\x93\x01\x02\x03"),
    "a body that is an extension": lambda dialect: reply(dialect, body=b"\xd4\x05\x00"),
    "a body that is a timestamp": lambda dialect: reply(dialect, body=pack(msgpack.Timestamp(5))),
    "text that is no UTF-8": with_field(b"\xa1x\xa1\xff"),
    "a key that is no UTF-8": with_field(b"\xa1\xff\x01"),
    "a key that is an int": with_field(b"\x01\x01"),
    "a key that is nothing": with_field(b"\xc0\x01"),
    "a key that is bytes": with_field(b"\xc4\x01x\x01"),
    "a key that is a list": with_field(b"\x90\x01"),
    "a key that is an extension": with_field(b"\xd4\x05\x00\x01"),
    "a timestamp out of range": with_field(b"\xa1x\xc7\x0c\xff" + b"\xff" * 12),
    "nested too deep": with_field(b"\xa1x" + b"\x91" * 70 + b"\xc0"),
    "nested a thousand levels": with_field(b"\xa1x" + b"\x91" * 1000 + b"\xc0"),
    "nested deeper than MessagePack goes": with_field(b"\xa1x" + b"\x91" * 5000 + b"\xc0"),
    "a list that declares too much": with_field(b"\xa1x\xdd\xff\xff\xff\xff"),
    "a map that declares too much": with_field(b"\xa1x\xdf\xff\xff\xff\xff"),
    "text that declares too much": with_field(b"\xa1x\xdb\xff\xff\xff\xff"),
    "bytes that declare too much": with_field(b"\xa1x\xc6\xff\xff\xff\xff"),
    "tokens that are no ints": with_field(pack("generated_tokens") + b"\x92\x01\xcb" + bytes(8)),
    "tokens that are no list": with_field(pack("generated_tokens") + b"\xc3"),
    "fewer log probs than tokens": lambda dialect: reply(
        dialect, body=pack(finished([1, 1], generated_log_probs=[-0.5]))
    ),
}


@pytest.mark.parametrize("dialect", list(DIALECTS))
@pytest.mark.parametrize("what", [*BLAMELESS, *BLAMED])
async def test_nonsense_costs_what_it_names_and_no_more(dialect: str, what: str) -> None:
    row = DIALECTS[dialect]
    frames = (BLAMELESS | BLAMED)[what](row)
    async with (
        scripted_coordinator(dialect=dialect) as coordinator,
        open_client(coordinator.address, dialect=dialect) as client,
        client.stream("named", LONG) as named,
        client.stream("other", LONG) as other,
    ):
        submission, other_submission = [await coordinator.submission() for _ in range(2)]
        coordinator.send(submission.client, frames)
        coordinator.reply(other_submission, [1])
        assert (await other.result()).generated_tokens == [1]
        if what in BLAMED:
            with pytest.raises(RemoteProtocolError):
                await named.result()
        else:
            coordinator.reply(submission, [2])
            assert (await named.result()).generated_tokens == [2]
        books = client.statistics()
        assert books.malformed + books.discarded == 1
        assert (books.failed, books.completed) == ((1, 1) if what in BLAMED else (0, 2))


@pytest.mark.parametrize("dialect", list(DIALECTS))
async def test_what_a_newer_release_may_add_is_kept_whatever_its_type(dialect: str) -> None:
    news: dict[str, Any] = {
        "x": msgpack.ExtType(5, b"x"),
        "at": msgpack.Timestamp(5),
        "by": {b"\xff": [None, 2**64 - 1]},
    }
    async with (
        scripted_coordinator(dialect=dialect) as coordinator,
        open_client(coordinator.address, dialect=dialect) as client,
        client.stream("hi") as stream,
    ):
        coordinator.reply(await coordinator.submission(), [1], **news)
        assert (await stream.result()).extra == news


async def test_a_partial_that_makes_no_sense_fails_its_request_and_aborts_it(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("bad", LONG) as bad, client.stream("good", LONG) as good:
        bad_submission, good_submission = [await coordinator.submission() for _ in range(2)]
        coordinator.partial(bad_submission, [1])
        coordinator.partial(bad_submission, [2], new_tokens="two")
        coordinator.partial(good_submission, [3])
        assert (await good.receive()).tokens == [3]
        assert (await bad.receive()).tokens == [1]
        with pytest.raises(RemoteProtocolError):
            await bad.receive()
        with pytest.raises(RemoteProtocolError):
            await bad.result()
        assert (await coordinator.abort()).id == bad_submission.id
        coordinator.reply(good_submission, [3])
        await good.result()
    statistics = client.statistics()
    assert (statistics.failed, statistics.completed, statistics.malformed) == (1, 1, 1)
    assert statistics.submitted == 2


async def test_a_final_that_makes_no_sense_fails_its_request_without_an_abort(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with trio.open_nursery() as nursery:

        async def generate() -> None:
            with pytest.raises(RemoteProtocolError):
                await client.generate("hi")

        nursery.start_soon(generate)
        coordinator.reply(await coordinator.submission(), [], status=7)
    async with client.stream("marker"):
        pass
    await coordinator.submission()
    assert (await coordinator.abort()).id == 1
    statistics = client.statistics()
    assert (statistics.failed, statistics.completed, statistics.malformed) == (1, 0, 1)


@pytest.mark.parametrize("dialect", [name for name, row in DIALECTS.items() if row.can_stream])
async def test_a_final_that_contradicts_its_partials_costs_its_request(dialect: str) -> None:
    async with (
        scripted_coordinator(dialect=dialect) as coordinator,
        open_client(coordinator.address, dialect=dialect) as client,
        client.stream("named", LONG) as named,
        client.stream("other", LONG) as other,
    ):
        submission, other_submission = [await coordinator.submission() for _ in range(2)]
        for each in (submission, other_submission):
            coordinator.partial(each, [1, 2])
        coordinator.reply(submission, [1, 3, 4])
        coordinator.reply(other_submission, [1, 2, 3])
        with pytest.raises(RemoteProtocolError, match="contradict"):
            await named.result()
        assert (await other.result()).generated_tokens == [1, 2, 3]
        books = client.statistics()
        assert (books.failed, books.completed, books.malformed) == (1, 1, 1)


async def test_replies_that_come_twice_are_counted_and_dropped(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi") as stream:
        submission = await coordinator.submission()
        coordinator.reply(submission, [1])
        coordinator.reply(submission, [1])
        coordinator.send(submission.client, coordinator.partial_frames(submission, [1]))
        assert (await stream.result()).generated_tokens == [1]
    async with client.stream("marker") as stream:
        coordinator.reply(await coordinator.submission(), [1])
        await stream.result()
    assert client.statistics().discarded == 2


async def test_partials_without_end_that_nobody_reads_fail_their_request_at_a_limit(
    coordinator: ScriptedCoordinator, client: InferenceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "MAX_UNREAD_BYTES", 20_000)
    async with client.stream("flooded", LONG) as flooded, client.stream("other", LONG) as other:
        submission, other_submission = [await coordinator.submission() for _ in range(2)]
        for _ in range(1000):
            coordinator.partial(submission, [7])
        coordinator.partial(other_submission, [1])
        assert (await other.receive()).tokens == [1]
        assert (await coordinator.abort()).id == submission.id
        buffered = len(flooded._request.reception._undecoded)
        assert 100 < buffered < 300
        assert (await flooded.receive()).tokens == [7] * (buffered - 1)
        with pytest.raises(RemoteProtocolError, match="nobody has read"):
            await flooded.receive()
        coordinator.reply(other_submission, [1, 2])
        assert (await other.result()).generated_tokens == [1, 2]
    await settled(client)
    books = client.statistics()
    assert (books.failed, books.completed, books.aborted, books.malformed) == (1, 1, 0, 1)


async def test_partials_that_a_cancelled_reader_has_not_come_to_count_as_unread(
    coordinator: ScriptedCoordinator, client: InferenceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = reception.DECODED_AT_ONCE * 100
    monkeypatch.setattr(reception, "MAX_UNREAD_BYTES", 3 * size)
    async with client.stream("flooded", LONG) as stream:
        submission = await coordinator.submission()
        inbox = stream._request.reception
        while not stream.finished and len(inbox._decoding) < 10 * reception.DECODED_AT_ONCE:
            for _ in range(2 * reception.DECODED_AT_ONCE):
                coordinator.partial(submission, [7])
            await until(lambda: len(inbox._undecoded) > reception.DECODED_AT_ONCE or inbox.ended)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.receive)
                for _ in range(2):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert stream.finished
        with pytest.raises(RemoteProtocolError, match="nobody has read"):
            await stream.result()


async def test_partials_that_are_read_meet_no_limit(
    coordinator: ScriptedCoordinator, client: InferenceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "MAX_UNREAD_BYTES", 2_000)
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        for _ in range(200):
            coordinator.partial(submission, [7])
            assert (await stream.receive()).tokens == [7]
        coordinator.reply(submission, [7] * 200)
        assert (await stream.result()).generated_tokens == [7] * 200


async def test_a_flood_of_nonsense_is_logged_at_a_bounded_rate(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with client.stream("hi") as stream:
        submission = await coordinator.submission()
        for _ in range(5000):
            coordinator.send(submission.client, [b"\xc1"])
        coordinator.reply(submission, [1])
        await stream.result()
    assert client.statistics().malformed == 5000
    assert 10 <= len(caplog.records) < 20


async def test_a_flood_for_ids_never_sent_is_counted_and_not_logged(
    coordinator: ScriptedCoordinator, client: InferenceClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with client.stream("hi") as stream:
        submission = await coordinator.submission()
        for _ in range(5000):
            coordinator.send(submission.client, reply(client.dialect, pack(99)))
        coordinator.reply(submission, [1])
        await stream.result()
    assert client.statistics().discarded == 5000
    assert len(caplog.records) < 20


async def test_a_message_of_a_hundred_thousand_frames_is_one_malformed_message(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi") as stream:
        submission = await coordinator.submission()
        coordinator.send(submission.client, [b"\xc1"] * 100_000)
        coordinator.reply(submission, [1])
        await stream.result()
    assert client.statistics().malformed == 1
