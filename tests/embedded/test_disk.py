"""What is left of a broker when its process ends, and when its machine loses its power."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rmq_async.embedded import Broker, BrokerDisk, BrokerSettings, DiskLog, ManualClock, Registration
from rmq_protocol.bodies import LockBatchRequestBody, encode_body
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_heartbeat
from rmq_protocol.message import MessageQueue

from ..support.fakes import RawClient, pull_fields
from .inside import START
from .transactions.support import COMMIT, answer_to, beat, checks, end, put_half

pytestmark = pytest.mark.virtual_time

COMMIT_OFFSET = RequestCode.UPDATE_CONSUMER_OFFSET
LONG_AGO = 3600.0
"""Seconds: a flush that a test does not wait for."""


class Machine:
    """A broker on its disk, on the port that it got first."""

    def __init__(self, flush_interval: float = LONG_AGO) -> None:
        self.clock = ManualClock(START)
        self.log = DiskLog(1_000_000, self.clock.now_ms, flush_interval=flush_interval)
        self.disk = BrokerDisk("broker-a", self.log)
        self.broker = Broker(self.disk, BrokerSettings(self.clock))
        self.port = 0

    async def start(self) -> None:
        await self.broker.start("127.0.0.1", self.port)
        self.port = self.broker.listener.port

    async def restart(self) -> None:
        """Starts another broker on the disk. Those that ended are gone."""
        self.broker = Broker(self.disk, BrokerSettings(self.clock))
        await self.start()

    def save(self) -> None:
        """Lets the time pass after which all is saved."""
        self.broker.tick()
        self.broker.tick()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RawClient]:
        async with RawClient(self.broker.listener.address()) as client:
            yield client

    def bodies(self, topic: str = "T") -> list[bytes]:
        return [message.body for message in self.broker.messages(topic)]


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    machine = Machine()
    await machine.start()
    yield machine
    await machine.broker.stop()


async def commit(client: RawClient, offset: int, topic: str = "T") -> None:
    fields = {"consumerGroup": "CG", "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    assert (await client.ask(COMMIT_OFFSET, fields)).code == 0


async def committed(client: RawClient, topic: str = "T") -> int:
    fields = {"consumerGroup": "CG", "topic": topic, "queueId": "0"}
    response = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    return int((response.ext_fields or {})["offset"] or "") if response.code == 0 else -response.code


async def test_crash_of_the_process_resets_connections_and_keeps_messages(machine: Machine) -> None:
    async with machine.client() as client:
        for number in range(3):
            await client.send("T", b"%d" % number)
        held = client.write(RequestCode.PULL_MESSAGE, {})
        machine.broker.crash()
        assert held
        assert await client.is_closed()
    with pytest.raises(ConnectionRefusedError):
        await RawClient(machine.broker.listener.address()).__aenter__()
    await machine.restart()
    assert machine.bodies() == [b"0", b"1", b"2"]
    async with machine.client() as client:
        assert (await client.send("T", b"3")).code == 0
        assert await client.offset(RequestCode.GET_MAX_OFFSET, "T") == 4


async def test_crash_forgets_members_locks_and_pulls_that_wait(machine: Machine) -> None:
    async with machine.client() as client:
        await client.create_topic("T", 1)
        consumer = ConsumerData("CG", subscription_data_set=(SubscriptionData("T"),))
        beat = encode_heartbeat(HeartbeatData("c1", (ProducerData("PG"),), (consumer,)))
        assert (await client.ask(RequestCode.HEART_BEAT, None, beat)).code == 0
        lock = encode_body(LockBatchRequestBody("CG", "c1", (MessageQueue("T", "broker-a", 0),)))
        locked = await client.ask(RequestCode.LOCK_BATCH_MQ, None, lock)
        pull = {"sysFlag": "6", "suspendTimeoutMillis": "15000"}
        client.write(RequestCode.PULL_MESSAGE, pull_fields("T", **pull))
        await client.ask(9999)
        assert len(machine.broker.held) == 1
        machine.broker.crash()
    await machine.restart()
    assert len(machine.broker.held) == 0
    async with machine.client() as client:
        assert (await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "CG"})).code == 1
        assert (await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "PG"})).code == 1
        other = encode_body(LockBatchRequestBody("CG", "c2", (MessageQueue("T", "broker-a", 0),)))
        assert (await client.ask(RequestCode.LOCK_BATCH_MQ, None, other)).body == locked.body
        assert (await client.send("T", b"after")).code == 0


async def test_settings_of_topics_and_groups_survive_every_end(machine: Machine) -> None:
    async with machine.client() as client:
        await client.create_topic("T", 3)
        await client.pull("T")  # makes the group
        before: Registration = machine.broker.registration()
        machine.broker.crash()
    machine.disk.power_loss()
    await machine.restart()
    assert machine.broker.registration() == before
    assert before.topics["T"].write_queue_nums == 3
    assert machine.broker.state.groups.get("CG") is not None


async def test_committed_offsets_survive_as_they_were_last_saved(machine: Machine) -> None:
    async with machine.client() as client:
        for topic in ("T", "U"):
            for number in range(9):
                await client.send(topic, b"%d" % number)
        await client.pull("T")
        await commit(client, 3)
        machine.save()
        await commit(client, 7)
        await commit(client, 5, "U")
        machine.broker.crash()
        await machine.broker.stop()  # saves nothing any more
    await machine.restart()
    async with machine.client() as client:
        assert (await committed(client), await committed(client, "U")) == (3, 0)
        await commit(client, 8)
    await machine.broker.stop()
    await machine.restart()
    async with machine.client() as client:
        assert await committed(client) == 8
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        machine.save()
        machine.broker.crash()
    await machine.restart()
    async with machine.client() as client:
        assert await committed(client) == -22


async def test_loss_of_power_takes_what_was_not_flushed(machine: Machine) -> None:
    async with machine.client() as client:
        for number in range(5):
            await client.send("T", b"%d" % number, queue=number % 2)
        machine.log.flush()
        await client.pull("T")
        for number in range(5, 9):
            await client.send("T", b"%d" % number, queue=number % 2)
        await commit(client, 4)
        machine.save()
        machine.broker.crash()
    assert machine.disk.power_loss() == 4
    assert machine.disk.power_loss() == 0
    await machine.restart()
    assert machine.bodies() == [b"%d" % number for number in range(5)]
    async with machine.client() as client:
        assert [await client.offset(RequestCode.GET_MAX_OFFSET, "T", queue_id) for queue_id in range(2)] == [3, 2]
        ahead = await client.pull("T", offset=4)
        assert (ahead.code, ahead.remark) == (21, "OFFSET_OVERFLOW_BADLY")
        assert await committed(client) == 4  # ahead of the queue, as a real broker's
        reply = await client.send("T", b"new")
        assert (reply.ext_fields or {})["queueOffset"] == "3"
    assert machine.log.view(machine.broker.messages("T")[-1].commit_log_offset) is not None


async def test_crash_of_the_process_loses_nothing_to_a_later_loss_of_power(machine: Machine) -> None:
    async with machine.client() as client:
        await client.send("T", b"0")
        machine.broker.crash()
    await machine.restart()  # reads the log from the disk: all of it is there from now on
    async with machine.client() as client:
        await client.send("T", b"1")
        machine.broker.crash()
    assert machine.disk.power_loss() == 1
    await machine.restart()
    assert machine.bodies() == [b"0"]


async def test_sync_flush_loses_nothing(machine: Machine) -> None:
    machine.log.flush_interval = 0
    async with machine.client() as client:
        for number in range(3):
            await client.send("T", b"%d" % number)
        machine.log.flush_interval = LONG_AGO
        await client.send("T", b"late")
        machine.broker.crash()
    assert machine.disk.power_loss() == 1
    await machine.restart()
    assert machine.bodies() == [b"0", b"1", b"2"]


async def test_flush_follows_a_message_after_the_interval(machine: Machine) -> None:
    machine.log.flush_interval = 0.01
    async with machine.client() as client:
        await client.send("T", b"0")
        first = machine.log.end
        async with asyncio.timeout(5.0):
            while machine.log.flushed < first:
                await asyncio.sleep(0.001)
        machine.log.flush_interval = LONG_AGO  # a slow disk
        await client.send("T", b"1")
        assert machine.log.flushed == first
        machine.broker.crash()
    assert machine.disk.power_loss() == 1
    await machine.restart()
    assert machine.bodies() == [b"0"]


async def test_stop_in_order_saves_and_flushes(machine: Machine) -> None:
    async with machine.client() as client:
        await client.send("T", b"0")
    await machine.broker.stop()
    assert machine.disk.power_loss() == 0
    await machine.restart()
    assert machine.bodies() == [b"0"]


async def test_delayed_messages_wait_on_after_a_crash(machine: Machine) -> None:
    def delayed(body: bytes, level: int) -> dict[str, str]:
        return {"UNIQ_KEY": body.decode(), "DELAY": str(level)}

    async with machine.client() as client:
        await client.send("T", b"soon", properties=delayed(b"soon", 2))
        await client.send("T", b"later", properties=delayed(b"later", 4))
        await machine.clock.advance(5)
        assert machine.bodies() == [b"soon"]
        machine.save()
        await client.send("T", b"again", properties=delayed(b"again", 2))
        await machine.clock.advance(5)
        assert machine.bodies() == [b"soon", b"again"]
        machine.broker.crash()
    await machine.clock.advance(100)
    await machine.restart()
    await machine.clock.advance(0)
    assert machine.bodies() == [b"soon", b"again", b"again", b"later"]  # the last delivery was not saved


async def test_timers_wait_on_after_a_crash(machine: Machine) -> None:
    async with machine.client() as client:
        for body, seconds in ((b"a", 10), (b"b", 20), (b"c", 30)):
            await client.send("T", body, properties={"UNIQ_KEY": body.decode(), "TIMER_DELAY_SEC": str(seconds)})
        await machine.clock.advance(12)
        assert machine.bodies() == [b"a"]
        machine.save()
        await machine.clock.advance(10)
        assert machine.bodies() == [b"a", b"b"]
        machine.broker.crash()
    await machine.restart()
    await machine.clock.advance(20)
    assert machine.bodies() == [b"a", b"b", b"b", b"c"]


async def test_timers_since_the_last_save_are_delivered_twice_after_a_crash(machine: Machine) -> None:
    """As by RocketMQ 5.5.0, also those that had not been delivered before."""
    async with machine.client() as client:
        await client.send("T", b"a", properties={"UNIQ_KEY": "a", "TIMER_DELAY_SEC": "30"})
        machine.broker.tick()
        for body, seconds in ((b"b", 5), (b"c", 20)):
            await client.send("T", body, properties={"UNIQ_KEY": body.decode(), "TIMER_DELAY_SEC": str(seconds)})
        await machine.clock.advance(10)
        assert machine.bodies() == [b"b"]
        machine.broker.crash()
    await machine.restart()
    await machine.clock.advance(30)
    assert machine.bodies() == [b"b", b"b", b"b", b"c", b"c", b"a"]


async def test_progress_is_saved_every_5_seconds_from_10_seconds_on(machine: Machine) -> None:
    """Of committed offsets; that of the delay levels every 10 s."""
    async with machine.client() as client:
        await client.pull("T")
        found = []
        for number in range(1, 5):
            await client.send("T", b"x", properties={"UNIQ_KEY": str(number), "DELAY": "1"})
            await machine.clock.advance(2)
            await commit(client, number)
            machine.broker.tick()
            found.append((machine.disk.offsets.get(("CG", "T")), machine.disk.schedule.levels[:1]))
    assert found == [(None, ()), ({0: 2}, (2,)), ({0: 3}, (2,)), ({0: 4}, (4,))]


async def test_each_crash_keeps_what_was_saved_before_it(machine: Machine) -> None:
    async with machine.client() as client:
        for number in range(4):
            body = b"%d" % number
            wait = {"TIMER_DELAY_SEC": "5"} if number % 2 else {"DELAY": "2"}
            await client.send("T", body, properties={"UNIQ_KEY": body.decode(), **wait})
    await machine.clock.advance(20)
    delivered = machine.bodies()
    assert sorted(delivered) == [b"0", b"1", b"2", b"3"]
    for _ in range(3):
        machine.save()
        machine.broker.crash()
        await machine.restart()
        await machine.clock.advance(20)
    assert machine.bodies() == delivered


async def test_loss_of_power_takes_delayed_messages_too(machine: Machine) -> None:
    """What is stored later at their offsets is delivered once, at its own time."""

    async def send_all(client: RawClient, prefix: str) -> None:
        for kind, properties in (("level", {"DELAY": "4"}), ("timer", {"TIMER_DELAY_SEC": "30"})):
            await client.send("T", f"{prefix}-{kind}".encode(), properties={"UNIQ_KEY": prefix + kind, **properties})

    async with machine.client() as client:
        await send_all(client, "kept")
        machine.log.flush()
        await send_all(client, "lost")
        machine.save()
        machine.broker.crash()
    assert machine.disk.power_loss() == 2
    await machine.restart()
    async with machine.client() as client:
        await machine.clock.advance(20)
        await send_all(client, "new")
        await machine.clock.advance(12)
        assert sorted(machine.bodies()) == [b"kept-level", b"kept-timer"]
        await machine.clock.advance(60)
        assert sorted(machine.bodies()) == [b"kept-level", b"kept-timer", b"new-level", b"new-timer"]


async def test_open_transactions_are_asked_about_after_a_crash(machine: Machine) -> None:
    async with machine.client() as client:
        first = await put_half(client, body=b"ended", UNIQ_KEY="1" * 32)
        await put_half(client, body=b"open", UNIQ_KEY="2" * 32)
        assert (await end(client, first, COMMIT)).code == 0
        machine.save()
        machine.broker.crash()
    await machine.restart()
    async with machine.client() as client:
        await beat(client, "c1")
        await machine.clock.advance(30)  # one round of checks
        (check,) = await checks(client)
        assert (check.ext_fields or {})["transactionId"] == "2" * 32
        assert (await client.ask(RequestCode.END_TRANSACTION, {**answer_to(check), "commitOrRollback": str(COMMIT)})).code == 0
        await machine.clock.advance(30)  # one round of checks
        assert await checks(client) == []
    assert machine.bodies() == [b"ended", b"open"]


async def test_end_of_a_transaction_that_was_not_saved_is_asked_for_again(machine: Machine) -> None:
    async with machine.client() as client:
        half = await put_half(client)
        machine.save()
        assert (await end(client, half, COMMIT)).code == 0
        machine.broker.crash()
    await machine.restart()
    async with machine.client() as client:
        await beat(client, "c1")
        await machine.clock.advance(30)  # one round of checks
        assert len(await checks(client)) == 1


async def test_loss_of_power_takes_half_messages_too(machine: Machine) -> None:
    async with machine.client() as client:
        await put_half(client, body=b"kept", UNIQ_KEY="1" * 32)
        machine.log.flush()
        lost = await put_half(client, body=b"lost", UNIQ_KEY="2" * 32)
        machine.save()
        machine.broker.crash()
    assert machine.disk.power_loss() == 1
    await machine.restart()
    async with machine.client() as client:
        assert (await end(client, lost, COMMIT)).code == 1
        await beat(client, "c1")
        await put_half(client, body=b"new", UNIQ_KEY="3" * 32)
        await machine.clock.advance(30)  # one round of checks
        found = await checks(client)
        assert sorted((check.ext_fields or {})["transactionId"] or "" for check in found) == ["1" * 32, "3" * 32]


def test_disk_needs_no_event_loop() -> None:
    """The process has ended with its loop; its disk is read, cut and given to another broker."""
    machine = Machine()

    async def life() -> None:
        await machine.start()
        async with machine.client() as client:
            await client.send("T", b"0")
            machine.log.flush()
            await client.send("T", b"1")
        machine.broker.crash()
        await asyncio.sleep(0)

    asyncio.run(life())
    machine.broker.crash()
    assert machine.disk.power_loss() == 1
    machine.broker = Broker(machine.disk, BrokerSettings(machine.clock))
    assert machine.bodies() == [b"0"]
    machine.broker.crash()


async def test_loss_of_power_takes_the_end_of_a_transaction_with_its_message(machine: Machine) -> None:
    """The half message was flushed, and its commit was not, though how far transactions have come was saved in between."""
    async with machine.client() as client:
        for number in "12":
            half = await put_half(client, body=b"half " + number.encode(), UNIQ_KEY=number * 32)
            if number == "1":
                assert (await end(client, half, COMMIT)).code == 0
        machine.log.flush()
        assert (await end(client, half, COMMIT)).code == 0
        machine.save()
        machine.broker.crash()
    assert machine.disk.power_loss() == 1
    await machine.restart()
    assert machine.bodies() == [b"half 1"]
    await machine.clock.advance(40)
    halves = [message.body for message in machine.broker.messages("RMQ_SYS_TRANS_HALF_TOPIC")]
    assert halves == [b"half 1", b"half 2", b"half 2"], "a check stores the half message again"
