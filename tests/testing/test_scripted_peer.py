"""ScriptedPeer: transcripts that a real client keeps, and what is said where something differs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from unittest import mock

import pytest

from rmq_async import ConnectionLostError, Message, Producer, RequestTimeoutError, SendStatus
from rmq_async.testing import (
    Answer,
    Close,
    Expect,
    ExpectClose,
    Reset,
    ScriptedPeer,
    TranscriptError,
    Wait,
    Write,
    routes_to,
)
from rmq_protocol.command import RemotingCommand, decode_command, encode_command
from rmq_protocol.constants import ONEWAY_FLAG, RequestCode, SerializeType
from rmq_protocol.frame import FrameDecoder

from .streams import Client

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.virtual_time]

SEND: Final = RequestCode.SEND_MESSAGE_V2
STORED: Final[Mapping[str, str]] = {"msgId": "7F0000010000123400000000000000AB", "queueId": "0", "queueOffset": "7"}


@asynccontextmanager
async def producer_of(broker: ScriptedPeer, **options: Any) -> AsyncIterator[Producer]:
    async with ScriptedPeer(aside=routes_to(broker.address)) as names:
        producer = Producer("shop", namesrv=names.address, **{"retries": 0, **options})
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()


class Raw(Client):
    """Speaks frames and expects nothing."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.decoder = FrameDecoder()

    def send(self, code: int, body: bytes = b"", *, opaque: int = 1, flag: int = 0, **fields: str | None) -> None:
        command = RemotingCommand(code=code, opaque=opaque, flag=flag, ext_fields=fields or None, body=body)
        self.writer.writelines(encode_command(command))

    async def answer(self) -> RemotingCommand:
        async with asyncio.timeout(60):
            while not (frames := self.decoder.feed(await self.reader.read(65536))):
                pass
        (frame,) = frames
        return decode_command(frame)


# -- with a real producer


async def test_an_answer_in_two_halves_is_one_answer() -> None:
    script = [
        Expect(SEND, {"a": "shop", "b": "T", "e": "0", "i": mock.ANY}, body=b"paid"),
        Answer(ext_fields=STORED, pieces=2, pause=0.02),
        Expect(SEND, body=b"sent"),
        Answer(ext_fields=STORED, pieces=[1, 4, 8, 20]),
    ]
    async with ScriptedPeer(*script) as broker, producer_of(broker) as producer:
        begin = time.monotonic()
        result = await producer.send(Message("T", b"paid"))
        assert time.monotonic() - begin == pytest.approx(0.02, abs=0.01)
        assert (result.status, result.queue_offset, result.attempts) == (SendStatus.SEND_OK, 7, 1)
        assert (await producer.send(Message("T", b"sent"))).queue_offset == 7
    assert [request.body for request in broker.requests] == [b"paid", b"sent"]
    assert broker.answered_aside[RequestCode.HEART_BEAT] >= 1


async def test_an_answer_with_a_foreign_opaque_answers_nothing() -> None:
    script = [
        Expect(SEND, body=b"first"),
        Answer(ext_fields={**STORED, "queueOffset": "666"}, opaque=lambda own: own + 1000),
        Expect(SEND, body=b"second"),
        Answer(ext_fields={**STORED, "queueOffset": "8"}),
        Answer(ext_fields=STORED, to=0),
    ]
    async with ScriptedPeer(*script) as broker, producer_of(broker) as producer:
        first = asyncio.create_task(producer.send(Message("T", b"first"), timeout=2))
        await asyncio.sleep(0.05)
        assert not first.done()
        second = await producer.send(Message("T", b"second"))
        assert (second.queue_offset, (await first).queue_offset) == (8, 7)


async def test_an_answer_to_an_unknown_opaque_leaves_a_time_out() -> None:
    script = [Expect(SEND), Answer(ext_fields=STORED, opaque=-5)]
    async with ScriptedPeer(*script) as broker, producer_of(broker) as producer:
        with pytest.raises(RequestTimeoutError) as late:
            await producer.send(Message("T", b"x"), timeout=0.1)
        assert late.value.maybe_stored


@pytest.mark.parametrize("end", [Close(), Reset()], ids=str)
async def test_a_close_between_request_and_answer_is_a_lost_connection(end: Close | Reset) -> None:
    script = [Expect(SEND, body=b"x"), end, Expect(SEND, body=b"y"), Answer(ext_fields=STORED)]
    async with ScriptedPeer(*script) as broker, producer_of(broker) as producer:
        with pytest.raises(ConnectionLostError) as lost:
            await producer.send(Message("T", b"x"))
        assert lost.value.maybe_stored
        assert (await producer.send(Message("T", b"y"))).queue_offset == 7


async def test_a_broken_answer_makes_the_client_close_and_come_again() -> None:
    script = [
        Expect(SEND, body=b"x"),
        Write(b"\x7f\xff\xff\xff"),
        ExpectClose(),
        Expect(SEND, body=b"x"),
        Answer(ext_fields=STORED),
    ]
    async with ScriptedPeer(*script) as broker, producer_of(broker, retries=1) as producer:
        assert (await producer.send(Message("T", b"x"))).attempts == 2


async def test_the_producers_error_is_explained_by_the_difference() -> None:
    script = [Expect(SEND, {"b": "Orders"}, body=b"paid 17 euros"), Answer(ext_fields=STORED)]
    with pytest.raises(TranscriptError) as found:
        async with ScriptedPeer(*script) as broker, producer_of(broker) as producer:
            await producer.send(Message("T", b"paid 71 euros"))
    assert isinstance(found.value.__cause__, ConnectionLostError)
    assert str(found.value) == (
        "transcript of 2 steps, 0 played, 1 connections made\n"
        "->   1 Expect SEND_MESSAGE_V2 (310)\n"
        "     2 Answer 0\n"
        "  code: SEND_MESSAGE_V2 (310)\n"
        "- ext_fields['b']: 'Orders'\n"
        "+ ext_fields['b']: 'T'\n"
        "- body: b'paid 17 euros'\n"
        "+ body: b'paid 71 euros'\n"
        "? body: 13 bytes expected, 13 came, first difference at byte 5"
    )


# -- differences


async def difference(*script: Any, **command: Any) -> str:
    """What is said of a command that is not what the script expects."""
    with pytest.raises(TranscriptError) as found:
        async with ScriptedPeer(*script) as peer, Raw(peer.address) as client:
            client.send(**command)
            assert (await client.rest())[1] == "reset"
    return str(found.value)


async def test_each_field_that_differs_is_shown_and_equal_ones_for_orientation() -> None:
    expected = Expect(310, {"a": "1", "b": None, "c": "3"}, body=b"x" * 500 + b"y", oneway=True, exact=True)
    text = await difference(expected, code=9999, body=b"x" * 400, a="1", b="2", d="4")
    assert text.splitlines()[2:] == [
        "- code: SEND_MESSAGE_V2 (310)",
        "+ code: 9999",
        "- oneway: True",
        "+ oneway: False",
        "  ext_fields['a']: '1'",
        "- ext_fields['b']: (absent)",
        "+ ext_fields['b']: '2'",
        "- ext_fields['c']: '3'",
        "+ ext_fields['c']: (absent)",
        "+ ext_fields['d']: '4'",
        f"- body: ... b'{'x' * 60}' ...",
        f"+ body: ... b'{'x' * 20}'",
        "? body: 501 bytes expected, 400 came, first difference at byte 400",
    ]


async def test_a_body_may_be_compared_by_an_object() -> None:
    class Matching:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, bytes) and re.fullmatch(rb"\d+", other) is not None

        def __repr__(self) -> str:
            return "digits"

    async with ScriptedPeer(Expect(1, body=Matching())) as peer, Raw(peer.address) as client:
        client.send(1, b"123")
        await peer.done(5)
    text = await difference(Expect(1, body=Matching()), code=1, body=b"abc")
    assert "- body: digits\n+ body: b'abc'" in text


async def test_more_than_was_expected_is_a_difference() -> None:
    with pytest.raises(TranscriptError, match=r"\+ HEART_BEAT \(34\) was received, but no further request was expected"):
        async with ScriptedPeer(Expect(1), aside={}) as peer, Raw(peer.address) as client:
            client.send(1)
            client.send(34)
            await client.rest()


async def test_less_than_was_expected_is_a_difference() -> None:
    with pytest.raises(TranscriptError) as found:
        async with ScriptedPeer(Expect(1), Answer(), Expect(2), patience=0.05) as peer, Raw(peer.address) as client:
            client.send(1)
            await client.answer()
    text = str(found.value)
    assert text.splitlines()[1:] == [
        "ok   1 Expect 1",
        "ok   2 Answer 0",
        "->   3 Expect 2",
        "only 2 of 3 steps were played within 0.05 s",
    ]


async def test_a_long_transcript_is_shown_around_the_difference() -> None:
    script = [step for number in range(1000, 1020) for step in (Expect(number), Answer())]
    with pytest.raises(TranscriptError) as found:
        async with ScriptedPeer(*script) as peer, Raw(peer.address) as client:
            for number in [*range(1000, 1010), 7]:
                client.send(number)
            await client.rest()
    lines = str(found.value).splitlines()
    assert lines[0].startswith("transcript of 40 steps, 20 played")
    assert (lines[1], lines[6], len(lines)) == ("ok  16 Answer 0", "->  21 Expect 1010", 15)


async def test_a_frame_where_the_client_should_close_is_a_difference() -> None:
    with pytest.raises(TranscriptError, match=r"- the client closes the connection\n\+ 2$"):
        async with ScriptedPeer(Expect(1), ExpectClose()) as peer, Raw(peer.address) as client:
            client.send(1)
            client.send(2)
            await client.rest()


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x00", b"\x00\x00\x00\x06\x00\x00\x00\x02{]", b"GET / HTTP/1.1\r\n\r\n"])
async def test_what_is_no_frame_is_a_difference(data: bytes) -> None:
    with pytest.raises(TranscriptError, match="received bytes that are not a frame: "):
        async with ScriptedPeer(Expect(1)) as peer, Raw(peer.address) as client:
            client.writer.write(data)
            await client.rest()


async def test_an_answer_without_a_request_is_a_difference() -> None:
    with pytest.raises(TranscriptError, match=r"the connection of 7 was closed before the whole response was written"):
        async with ScriptedPeer(Expect(7), Wait(0.05), Answer()) as peer:
            async with Raw(peer.address) as client:
                client.send(7)
            await peer.done(5)
    with pytest.raises(TranscriptError, match=r"there is no request 3, 1 have arrived"):
        async with ScriptedPeer(Expect(7), Answer(to=3)) as peer, Raw(peer.address) as client:
            client.send(7)
            await peer.done(5)


async def test_errors_of_the_test_itself_stay_when_the_transcript_was_kept() -> None:
    with pytest.raises(LookupError, match="mine"):
        async with ScriptedPeer(Expect(1)):
            raise LookupError("mine")


async def test_a_cancelled_test_stays_cancelled() -> None:
    with pytest.raises(asyncio.CancelledError):
        async with ScriptedPeer(Expect(1)) as peer, Raw(peer.address) as client:
            client.send(2)
            await client.rest()
            raise asyncio.CancelledError


# -- steps


async def test_answers_leave_in_any_order_in_both_forms_with_everything_they_may_have() -> None:
    script = [
        Expect(1),
        Expect(2),
        Answer(5, remark="second", to=1, form=SerializeType.ROCKETMQ, body=b"2"),
        Answer(6, ext_fields={"x": "y"}, to=0),
    ]
    async with ScriptedPeer(*script) as peer, Raw(peer.address) as one, Raw(peer.address) as two:
        one.send(1, opaque=11)
        await asyncio.sleep(0.02)
        two.send(2, opaque=22, flag=ONEWAY_FLAG)
        second, first = await two.answer(), await one.answer()
        assert (second.code, second.opaque, second.remark, second.body) == (5, 22, "second", b"2")
        assert (first.code, first.opaque, first.ext_fields, first.is_response) == (6, 11, {"x": "y"}, True)


async def test_heartbeats_are_answered_aside_unless_set_otherwise() -> None:
    async with ScriptedPeer(Expect(1), Answer()) as peer, Raw(peer.address) as client:
        client.send(34, opaque=5)
        assert (await client.answer()).opaque == 5
        client.send(34, flag=ONEWAY_FLAG)
        client.send(1, opaque=6)
        assert (await client.answer()).opaque == 6
        assert peer.answered_aside == {34: 2}
    async with ScriptedPeer(aside={34: Answer(1)}) as peer, Raw(peer.address) as client:
        client.send(34)
        assert (await client.answer()).code == 1


@pytest.mark.parametrize("pieces", [0, -1, [0, 5], [-3]])
def test_pieces_of_no_size_are_refused(pieces: Any) -> None:
    with pytest.raises(ValueError, match="pieces must be a positive number"):
        Answer(pieces=pieces)


async def test_a_transcript_is_played_once() -> None:
    peer = ScriptedPeer()
    with pytest.raises(RuntimeError, match="has no address before"):
        _ = peer.address
    async with peer:
        await peer.done(1)
        with pytest.raises(RuntimeError, match="started already"):
            await peer.start()
    await peer.stop()
