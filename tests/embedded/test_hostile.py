"""Clients that break every rule, while another one is served."""

from __future__ import annotations

import asyncio
import random
import resource
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded import server as embedded_server
from rmq_async.embedded.server import Connection
from rmq_async.embedded.service import BaseService
from rmq_async.embedded.sockets import descriptor_limit
from rmq_protocol.command import RemotingCommand, decode_command, encode_command, make_response
from rmq_protocol.constants import MAX_FRAME_SIZE, RESPONSE_FLAG, RequestCode, SerializeType
from rmq_protocol.errors import ProtocolError
from rmq_protocol.frame import Frame, FrameDecoder

from ..support.fakes import RawClient, pull_fields, send_fields
from .inside import broker_of, congested, name_server_of

pytestmark = pytest.mark.virtual_time

GARBAGE = {
    "2^31-1 bytes": struct.pack(">iI", 2**31 - 1, 10),
    "negative length": struct.pack(">iI", -1, 0),
    "length 0": struct.pack(">iI", 0, 0),
    "length 3": struct.pack(">iI", 3, 0),
    "one above the limit": struct.pack(">iI", MAX_FRAME_SIZE - 3, 10),
    "header beyond its frame": struct.pack(">iI", 10, 100),
    "serialize type 7": struct.pack(">iI", 8, 7 << 24 | 4) + b"{}  ",
    "no header": struct.pack(">iI", 4, 0),
    "bad JSON": struct.pack(">iI", 6, 2) + b"{x",
    "JSON that is no object": struct.pack(">iI", 7, 3) + b"[1]",
    "no code": struct.pack(">iI", 6, 2) + b"{}",
    "short binary header": struct.pack(">iI", 9, 1 << 24 | 5) + b"12345",
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(200),
    "zeros": bytes(100_000),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_closes_its_connection_and_no_other(server: EmbeddedRocketMQ, broker: RawClient, name: str) -> None:
    for address in (server.namesrv, server.brokers["broker-a"]):
        async with RawClient(address) as bad:
            bad.writer.write(GARBAGE[name])
            assert await bad.is_closed()
    assert (await broker.send("T")).code == 0
    assert server.statistics("broker-a").refused == 1


async def test_good_frames_before_a_broken_one_are_answered(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    good = encode_command(RemotingCommand(code=310, opaque=5, ext_fields={**send_fields("T")}, body=b"x"))
    broker.writer.write(b"".join([*good, GARBAGE["bad JSON"], *good]))
    assert (await broker.read()).opaque == 5
    assert await broker.is_closed()
    assert len(server.messages("T")) == 1


async def test_responses_without_a_request_are_ignored(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    broker.write(0, None, flag=RESPONSE_FLAG)
    broker.write(310, send_fields("T"), b"x", flag=RESPONSE_FLAG)
    assert (await broker.send("T")).code == 0
    assert len(server.messages("T")) == 1


async def test_frames_that_dribble_in_are_served(broker: RawClient) -> None:
    data = b"".join(encode_command(RemotingCommand(code=310, opaque=9, ext_fields={**send_fields("T")}, body=b"x")))
    for index in range(len(data)):
        broker.writer.write(data[index : index + 1])
        await asyncio.sleep(0)
    assert (await broker.read()).code == 0


async def test_unfinished_frames_are_bounded_over_all_connections(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.server.MAX_UNFINISHED", 1_000_000)
    async with RawClient(server.brokers["broker-a"]) as small, RawClient(server.brokers["broker-a"]) as large:
        small.writer.write(struct.pack(">iI", 300_000, 10) + bytes(200_000))
        large.writer.write(struct.pack(">iI", 16_000_000, 10) + bytes(2_000_000))
        assert await large.is_closed()
        assert not await small.is_closed(0.1)
        assert (await broker.send("T")).code == 0
    await broker.ask(9999)
    assert broker_of(server).listener._unfinished == 0  # noqa: SLF001


async def test_a_connection_that_held_too_much_is_dropped_and_counted_once(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.server.MAX_UNFINISHED", 1_000_000)
    listener = broker_of(server).listener
    await broker.ask(9999)
    (small,) = listener.connections
    async with RawClient(server.brokers["broker-a"]) as other:
        await other.ask(9999)
        (large,) = listener.connections.keys() - {small}
        listener.count_unfinished(large, 1_000_001)
        for size in range(10, 15):  # before the event loop reports that it is gone
            listener.count_unfinished(small, size)
        assert listener.refused == 1
        assert listener._unfinished == 14  # noqa: SLF001
        assert await other.is_closed()
    assert (await broker.send("T")).code == 0
    assert listener._unfinished == small.unfinished == 0  # noqa: SLF001


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> dict[Connection, asyncio.Transport]:
    """Of the connections that a server accepts from now on."""
    found: dict[Connection, asyncio.Transport] = {}
    connection_made = Connection.connection_made

    def noted(connection: Connection, transport: Any) -> None:
        found[connection] = transport
        connection_made(connection, transport)

    monkeypatch.setattr(Connection, "connection_made", noted)
    return found


@pytest.fixture
def quick_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that start from now on look for idle connections every 50 ms."""
    monkeypatch.setattr(embedded_server, "_SCAN_INTERVAL", 0.05)


async def test_connection_reading_pauses_after_large_read(
    transports: dict[Connection, asyncio.Transport], server: EmbeddedRocketMQ, broker: RawClient
) -> None:
    await broker.ask(9999)
    (connection,) = broker_of(server).listener.connections
    transport = transports[connection]
    frame = b"".join(encode_command(RemotingCommand(code=310, ext_fields={**send_fields("T")}, body=bytes(1000))))
    connection.data_received(frame * 150)
    assert not transport.is_reading()
    await asyncio.sleep(0)
    assert transport.is_reading()
    connection.data_received(frame * 50)
    assert transport.is_reading()
    for _ in range(200):
        assert (await broker.read()).code == 0
    connection.data_received(frame * 150)
    server.stall()
    await asyncio.sleep(0)
    assert not transport.is_reading()
    server.resume()
    assert transport.is_reading()


async def test_a_client_that_does_not_read_is_not_served_further(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.send("T", bytes(1_000_000))
    async with RawClient(server.brokers["broker-a"]) as greedy:
        greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(500):
            greedy.write(11, pull_fields("T"))
        for _ in range(20):
            assert (await broker.send("U")).code == 0
            await asyncio.sleep(0.01)
        served = server.requests[11]
        assert 1 <= served < 30
        connection = next(iter(congested(server)))
        assert connection.unread < 4_000_000
        for _ in range(5000):
            greedy.write(9999)
        for _ in range(10):
            assert (await broker.send("U")).code == 0
        assert len(connection._frames) < 1500  # what one read brought: the rest waits in the sockets  # noqa: SLF001
        greedy.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(500):
            assert (await greedy.read()).code == 0


async def test_held_pulls_wait_for_a_congested_client(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.send("T", bytes(1_000_000))
    await broker.create_topic("U")
    async with RawClient(server.brokers["broker-a"]) as greedy:
        greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
        greedy.write(11, pull_fields("U", sysFlag="6", suspendTimeoutMillis="20000"))
        for _ in range(50):
            greedy.write(11, pull_fields("T"))
        while not congested(server):
            await asyncio.sleep(0.01)
        await broker.send("U", b"1")
        await broker.send("U", b"2")
        assert len(broker_of(server).held) == 1
        greedy.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answers = {answer.opaque: answer for answer in [await greedy.read() for _ in range(51)]}
        assert {answer.code for answer in answers.values()} == {0}
        assert (answers[1].ext_fields or {})["nextBeginOffset"] == "2"  # what came meanwhile is not forgotten


async def test_unread_answers_are_bounded_over_all_connections(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.server.MAX_UNREAD", 10_000_000)
    await broker.send("T", bytes(4_000_000))
    listener = broker_of(server).listener
    greedy = []
    for _ in range(6):
        client = RawClient(server.brokers["broker-a"])
        await client.__aenter__()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(3):
            client.write(11, pull_fields("T"))
        greedy.append(client)
    while listener.refused < 2:
        await asyncio.sleep(0.01)
    assert sum(each.unread for each in listener.connections) <= 10_000_000 + 4_100_000
    assert (await broker.send("U")).code == 0
    for client in greedy:
        await client.__aexit__(None, None, None)


async def test_answers_that_wait_for_a_client_are_lost_on_one_that_does_not_read(
    server: EmbeddedRocketMQ, broker: RawClient
) -> None:
    heartbeat = b'{"clientID":"c","consumerDataSet":[{"groupName":"CG"}]}'
    await broker.ask(RequestCode.HEART_BEAT, None, heartbeat)
    await broker.send("T", bytes(1_000_000))
    async with RawClient(server.brokers["broker-a"]) as admin:
        admin.writer.transport.pause_reading()  # type: ignore[attr-defined]
        admin.write(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "CG", "clientId": "c"})
        asked = await broker.request()
        while asked.code != RequestCode.GET_CONSUMER_RUNNING_INFO:
            asked = await broker.request()
        while not congested(server):
            admin.write(11, pull_fields("T"))
            await asyncio.sleep(0.01)
        connection = next(iter(congested(server)))
        unread = connection.unread
        broker.answer(asked, 0, None, None, bytes(8_000_000))
        await broker.ask(9999)
        assert connection.unread <= unread


async def test_connection_never_read_is_closed_as_idle(
    quick_scans: None, server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.send("T", bytes(4_000_000))
    for _ in range(5):
        broker.write(11, pull_fields("T"))
    while not congested(server):
        await asyncio.sleep(0.01)
    monkeypatch.setattr(embedded_server, "IDLE_TIMEOUT", 0.2)
    async with asyncio.timeout(5.0):
        while server.statistics("broker-a").connections:
            await asyncio.sleep(0.01)


async def test_connection_idle_is_closed(
    quick_scans: None, server: EmbeddedRocketMQ, broker: RawClient, names: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_server, "IDLE_TIMEOUT", 1.0)
    closed = asyncio.ensure_future(names.is_closed(5.0))
    while not closed.done():
        assert (await broker.ask(9999)).code == 3
        await asyncio.sleep(0.02)
    assert await closed
    assert (await broker.ask(9999)).code == 3


async def test_connections_are_bounded(server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.ask(9999)
    monkeypatch.setattr("rmq_async.embedded.server.MAX_CONNECTIONS", 1)
    async with RawClient(server.brokers["broker-a"]) as second:
        assert await second.is_closed()
    assert (await broker.ask(9999)).code == 3
    assert server.statistics("broker-a").refused == 1


QUEUE = b'{"topic":"T","brokerName":"broker-a","queueId":0}'
SUBSCRIPTION = b'{"topic":"T","subString":"A || B","tagsSet":["A","B"],"codeSet":[65,66],"subVersion":1}'
BODIES = {
    18: b'{"topicConfigList":[{"topicName":"L","readQueueNums":1,"attributes":{"+message.type":"FIFO"}}]}',
    34: b'{"clientID":"c","producerDataSet":[{"groupName":"PG"}],"heartbeatFingerprint":7,"consumerDataSet":'
    b'[{"groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":[' + SUBSCRIPTION + b"]}]}",
    41: b'{"consumerGroup":"CG","clientId":"c","mqSet":[' + QUEUE + b"]}",
    42: b'{"consumerGroup":"CG","clientId":"c","mqSet":[' + QUEUE + b"]}",
    46: b'{"clientId":"c","group":"CG","subscriptionData":' + SUBSCRIPTION + b"}",
    200: b'{"groupName":"CG","retryMaxTimes":3,"attributes":{"a":"b"}}',
    225: b'{"groupConfigList":[{"groupName":"CG"},{"groupName":"CH"}]}',
    400: b'{"topic":"T","consumerGroup":"CG","clientId":"c","strategyName":"AVG","messageModel":"CLUSTERING"}',
    401: b'{"topic":"T","consumerGroup":"CG","mode":"POP","popShareQueueNum":1}',
    200151: b'{"brokerName":"broker-a","acks":[{"c":"CG","t":"T","r":"0","so":0,"q":0,"rq":999,"pt":1,"it":20000,"b":"Dw=="}]}',
}
FIELDS = {
    **pull_fields("T"),
    **send_fields("T", properties={"REPLY_TO_CLIENT": "c", "TAGS": "A"}),
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "clientID": "c",
    "clientId": "c",
    "producerGroup": "PG",
    "group": "CG",
    "groupName": "CG",
    "cluster": "DefaultCluster",
    "namespace": "N",
    "key": "K",
    "value": "V",
    "offset": "0",
    "timestamp": "0",
    "msgId": "7F00000100002A9F0000000000000000",
    "maxNum": "10",
    "beginTimestamp": "0",
    "endTimestamp": "9999999999999",
    "defaultTopicQueueNums": "4",
    "bornTimestamp": "0",
    "flag": "0",
    "delayLevel": "0",
    "tranStateTableOffset": "0",
    "commitLogOffset": "0",
    "commitOrRollback": "8",
    "invisibleTime": "1000",
    "pollTime": "1000",
    "bornTime": "0",
    "initMode": "0",
    "extraInfo": "0 1 1000 1 0 broker-a 0 0",
}


async def test_connection_beyond_descriptor_limit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert (descriptor_limit(), embedded_server.RESERVED_DESCRIPTORS) == (limit, 128)
    monkeypatch.setattr(embedded_server, "RESERVED_DESCRIPTORS", limit - 1)
    async with EmbeddedRocketMQ() as server, RawClient(server.brokers["broker-a"]) as broker:
        await broker.ask(9999)
        async with RawClient(server.brokers["broker-a"]) as second:
            assert await second.is_closed()
        assert (await broker.ask(9999)).code == 3


async def test_codes_that_are_none_are_counted_up_to_a_bound(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.service.MAX_CODES", 3)
    for code in range(5000, 5010):
        assert (await broker.ask(code)).code == 3
    await broker.offset(RequestCode.GET_MAX_OFFSET, "T")
    assert server.requests == {5000: 1, 5001: 1, 5002: 1, 30: 1}


def corpus(rng: random.Random, codes: set[int]) -> list[Frame]:
    """Frames of every request the servers know, in both header forms where its code fits them."""
    frames = []
    for code in sorted(codes):
        for serialize_type in SerializeType if code < 0x8000 else (SerializeType.JSON,):
            flag = rng.choice([0, 0, 2])
            ext: dict[str, str | None] = {**FIELDS}
            command = RemotingCommand(code=code, opaque=1, flag=flag, ext_fields=ext, body=BODIES.get(code, b"body"))
            frames += FrameDecoder().feed(b"".join(encode_command(command, serialize_type)))
    return frames


def mutate(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 1:
            out[at:at] = rng.choice([b'"', b"-", b"999999999999999999999", b"\xff", b"null", b"\\ud800", b"\x01", b"{", b"e9"])
        elif kind == 2:
            del out[at : at + rng.randint(1, 9)]
        else:
            out = out[: max(at, 1)]
    return bytes(out)


class Peer:
    """Stands for a connection that takes everything; answers the broker's own requests now and then."""

    remote = "127.0.0.1:1"
    local_ip = "127.0.0.1"
    closed = congested = second = False

    def __init__(self) -> None:
        self.asked: list[RemotingCommand] = []

    def send(self, parts: Sequence[bytes]) -> None:
        for frame in FrameDecoder().feed(b"".join(parts)):
            command = decode_command(frame)
            if not command.is_response and not command.is_oneway:
                self.asked.append(command)

    def close(self) -> None:
        """Stays open."""


async def test_no_bytes_raise_anything_but_a_protocol_error(server: EmbeddedRocketMQ, caplog: pytest.LogCaptureFixture) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    broker, names = broker_of(server), name_server_of(server)
    peer = Peer()
    connection: Any = peer
    frames = corpus(rng, {*broker.handlers, *names.handlers, 9999})
    answered = 0

    def serve(service: BaseService, frame: Frame) -> int:
        try:
            parts = service.serve(connection, frame)
        except ProtocolError:
            return 0
        return len(FrameDecoder().feed(b"".join(parts or ())))

    for number in range(6000):
        frame = rng.choice(frames)
        which = rng.randrange(3)
        header = mutate(rng, frame.header) if which != 1 else frame.header
        body = mutate(rng, frame.body) if which != 0 else frame.body
        answered += sum(serve(service, Frame(frame.serialize_type, header, body)) for service in (broker, names))
        if peer.asked and rng.random() < 0.5:
            response = make_response(peer.asked.pop(), rng.choice([0, 1]), "x", {"a": "b"}, b"{}")
            serve(broker, *FrameDecoder().feed(b"".join(encode_command(response))))
        if number % 500 == 0:
            await asyncio.sleep(0)
    broker.tick()
    broker.disconnected(connection)
    assert answered > 1500
    assert not [record for record in caplog.records if record.exc_info]
    assert (len(broker.calls), len(broker.held)) == (0, 0)


async def test_an_error_of_ours_is_answered_with_1(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise KeyError("bug")

    monkeypatch.setitem(broker_of(server).handlers, RequestCode.GET_MAX_OFFSET, broken)
    response = await broker.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert (response.code, response.remark) == (1, "KeyError: 'bug'")
    assert "failed" in caplog.text
    assert (await broker.send("T")).code == 0
