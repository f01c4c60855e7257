"""Commits that meet each other."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import Admin, ClientConfig, Consumer, Message, MessageQueue, Producer, PullConsumer, machine
from rmq_async.client import ClientInstance, commit_offset
from rmq_async.consumer.group.commits import Commits, Doubts
from rmq_async.consumer.held_queue import HeldQueue, QueueState
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import RequestCode

from .support import Seen, committed_at, create, member, send, taken, until

pytestmark = pytest.mark.virtual_time

Q0 = MessageQueue("T", "broker-a", 0)


async def commit(namesrv: str, offset: int) -> None:
    """Commits as an operator's tool does."""
    async with PullConsumer("g", namesrv=namesrv) as tool:
        await tool.commit(Q0, offset)


async def test_commit_during_one_in_the_background_commits_what_moved_since() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, commit_interval=0.05)
        consumer.subscribe("T", Seen())
        async with consumer:
            for number in range(1, 6):
                await send(server.namesrv, b"%d" % number)
                await consumer.wait_idle()
                server.delay(0.1)  # commits are under way most of the time
                await asyncio.sleep(0.06)
                server.delay(0)
                await send(server.namesrv, b"%d more" % number)
                await consumer.wait_idle()
                await consumer.commit()
                assert server.progress("g")[Q0] == number * 2


@pytest.mark.parametrize("between", ["nothing", "another-member", "restart"])
async def test_commit_without_an_answer_is_repeated_where_the_broker_gets_it_late(between: str) -> None:
    """A connection that hung may deliver it after a later commit of a new connection, also of a queue that was given up and taken
    over again meanwhile, and after a restart: simulated seeds 70165 and 412705."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        options = {"commit_interval": 0.05, "rebalance_interval": 300.0, "request_timeout": 0.3}
        consumer = member("g", server.namesrv, "b", Seen(), **options)
        async with consumer:
            await send(server.namesrv, b"1", b"2")
            await consumer.wait_idle()
            await consumer.commit()
            server.delay(0.5)  # longer than request_timeout
            await send(server.namesrv, b"3")
            await until(lambda: consumer.health().problems)
            server.delay(0)
            await consumer.wait_idle()
            await consumer.commit()
            if between == "restart":
                await consumer.stop()
                await consumer.start()
            if between == "another-member":
                async with member("g", server.namesrv, "a", Seen()) as other:
                    await until(lambda: Q0 in other.assignment)
            await until(lambda: Q0 in consumer.assignment)
            await commit(server.namesrv, 1)
            await until(lambda: server.progress("g")[Q0] == 3, 2.0)


@pytest.mark.parametrize("replaced", [False, True])
async def test_last_commit_of_an_unread_queue_is_for_a_new_master_only(replaced: bool) -> None:
    """Another member may know of a loss and have gone back; a new master without offsets knows none of the group."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, b"1", b"2", b"3")
        await commit(server.namesrv, 3)
        async with member("g", server.namesrv, "b", Seen()) as consumer:
            await until(lambda: Q0 in consumer.assignment)
            await consumer.wait_idle()
            if replaced:
                server.lose_master("broker-a")
                server.elect_master("broker-a")
                assert Q0 not in server.progress("g")
            else:
                await commit(server.namesrv, 1)
    assert server.progress("g")[Q0] == (3 if replaced else 1)


async def test_warning_of_a_blocked_loop_leaves_out_the_commit_interval(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    times = [0.0]

    async def sleep(seconds: float) -> None:
        times.append(times[-1] + seconds + 7.0)

    async def confirm() -> None:
        raise EOFError

    async with EmbeddedRocketMQ() as server:
        instance = await ClientInstance.acquire(ClientConfig(namesrv=server.namesrv))
        with monkeypatch.context() as patched:
            patched.setattr(machine, "monotonic", lambda: times[-1])
            patched.setattr(asyncio, "sleep", sleep)
            with pytest.raises(EOFError):
                await Commits(instance, "g", list, lambda _: True, Doubts()).run(60.0, 300.0, confirm)
        await instance.release()
    assert "did not run for 7.0 s" in caplog.text


@pytest.mark.parametrize("by_hand", [False, True])
async def test_broker_that_has_lost_the_offsets_gets_them_in_the_next_round(by_hand: bool) -> None:
    """Neither the watermark nor the address has changed: only the connection shows that it may be another process."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        options = {"commit_interval": 0.05, "rebalance_interval": 300.0, "start_from": "earliest"}
        await send(server.namesrv, b"1", b"2", b"3", b"4")
        consumer = Consumer("g", namesrv=server.namesrv, topics="T" if by_hand else (), **options)  # type: ignore[arg-type]
        if not by_hand:
            consumer.subscribe("T", Seen())
        async with consumer:
            if by_hand:
                await taken(consumer, 4)
            else:
                await consumer.wait_idle()
            await consumer.commit()
            before = server.progress("g")
            assert sum(before.values()) == 4
            server.lose_offsets()
            assert server.progress("g") == {}
            server.drop_connections("broker-a")
            await until(lambda: server.progress("g") == before, 5.0)
            commits = server.requests[RequestCode.UPDATE_CONSUMER_OFFSET]
            await asyncio.sleep(0.2)
            assert server.requests[RequestCode.UPDATE_CONSUMER_OFFSET] == commits, "one commit of each queue is enough"


@pytest.mark.parametrize("wait", ["look", "look-before-the-last", "commit-before"])
async def test_commit_that_has_waited_leaves_the_offset_of_the_next_owner(wait: str) -> None:
    """A broker that has restarted is looked at before a commit, and grants the lock to another member meanwhile."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_group("g")
        instance = await ClientInstance.acquire(ClientConfig(namesrv=server.namesrv))
        await instance.routes.get("T", 3.0)
        held, looked, end = HeldQueue(Q0, Q0, None, 5), asyncio.Event(), machine.monotonic() + 30

        async def look(_: HeldQueue, patience: float) -> None:
            await looked.wait()

        commits = Commits(instance, "g", lambda: [held], lambda _: True, Doubts())
        commits.spawn = lambda _, work: asyncio.ensure_future(work)
        if wait == "commit-before":
            await held.committing.acquire()
        else:
            commits.is_sure, commits.make_sure = lambda _: looked.is_set(), look
        commit = asyncio.ensure_future(commits.commit(held) if wait == "look" else commits.commit_last(held, lambda: end))
        await asyncio.sleep(1)
        held.state = QueueState.LOST
        await commit_offset(instance, "g", Q0, 9)
        looked.set()
        if wait == "commit-before":
            held.committing.release()
        assert not await commit
        await instance.release()
        assert server.progress("g") == {Q0: 9}


async def test_commit_of_the_user_reaches_a_broker_that_has_lost_the_offsets() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, commit_interval=300.0, rebalance_interval=300.0)
        consumer.subscribe("T", Seen())
        async with consumer:
            await send(server.namesrv, b"1")
            await consumer.wait_idle()
            await consumer.commit()
            server.lose_offsets()
            server.drop_connections("broker-a")
            await send(server.namesrv, b"2")
            await consumer.wait_idle()  # it has connected again
            server.lose_offsets()
            await consumer.commit()
            assert server.progress("g")[Q0] == 2


async def test_last_commit_is_sent_although_the_broker_has_confirmed_the_offset() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, rebalance_interval=300.0)
        consumer.subscribe("T", Seen())
        await consumer.start()
        await send(server.namesrv, b"1")
        await consumer.wait_idle()
        await consumer.commit()
        server.lose_offsets()
        await consumer.stop()
        assert server.progress("g")[Q0] == 1


async def test_last_commit_without_an_answer_is_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is a TimeoutError, as that of the end of the stop."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        client = ClientConfig(namesrv=server.namesrv, request_timeout=2.0)
        consumer = Consumer("g", client=client, rebalance_interval=300.0, commit_interval=300.0)
        consumer.subscribe("T", Seen())
        await consumer.start()
        await send(server.namesrv, b"1")
        await consumer.wait_settled(1)
        server.lose_answers(1, request=RequestCode.UPDATE_CONSUMER_OFFSET)
        asyncio.get_running_loop().call_later(1.0, server.lose_offsets)
        await consumer.stop()
        assert server.progress("g")[Q0] == 1
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_stop_does_not_wait_for_a_retry_topic_that_a_new_master_lacks(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, rebalance_interval=300.0)
        consumer.subscribe("T", Seen())
        await consumer.start()
        await send(server.namesrv, b"1")
        await consumer.wait_settled(1)
        await admin.delete_topic("%RETRY%g")
        server.lose_offsets()
        began = machine.monotonic()
        await consumer.stop()
        assert machine.monotonic() - began < 0.01
        assert server.progress("g")[Q0] == 1
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize("away", [15.0, 60.0])
def test_stop_waits_for_a_broker_that_is_away(away: float, caplog: pytest.LogCaptureFixture) -> None:
    """The offset was committed before; but the broker that comes, as a new master does, may not have it."""

    async def main(s: Simulation) -> tuple[float, int]:
        await create(s.namesrv, queues=1)
        consumer = Consumer("g", namesrv=s.namesrv, start_from="earliest")
        consumer.subscribe("T", Seen())
        await consumer.start()
        await send(s.namesrv, b"1", b"2")
        await consumer.wait_settled(2)
        await consumer.commit()
        broker = s.machine("broker-a")
        broker.crash()
        asyncio.get_running_loop().call_later(away, broker.restart)
        began = machine.monotonic()
        await consumer.stop()
        took = machine.monotonic() - began
        await asyncio.sleep(away + 5.0)
        return took, committed_at(s.brokers[0], "g", Q0)

    took, committed = Simulation(3, brokers=1, faults=None).run(main)
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR" and "T" in each.getMessage()]
    if away == 15.0:
        assert 15.0 <= took < 18.0
        assert committed == 2
        assert not errors
    else:
        assert 24.9 < took < 25.1
        assert committed == 0
        assert any("offset 2" in text and f"{Q0}" in text for text in errors)


async def test_start_in_a_group_without_an_offset_of_some_queues_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=2)
        async with member("g", server.namesrv, "one", Seen()):
            assert not caplog.text
        server.lose_offsets(broker="broker-b")
        async with member("g", server.namesrv, "two", Seen()):
            (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "group g has offsets in topic T, but none for 2 of its queues (broker-b:0, broker-b:1)" in line
    assert "first message" in line


def test_commits_to_other_brokers_go_on_beside_a_frozen_one() -> None:
    """Each commit to it takes the time of a request, 64 of them four times as long."""
    queues = 64

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=queues)
        frozen, other = s.brokers
        seen = Seen()
        async with (
            member("g", s.namesrv, "one", seen, start_from="earliest") as consumer,
            Producer("p", namesrv=s.namesrv) as p,
        ):

            async def send_to(broker: str) -> None:
                before = seen.bodies.total()
                for number in range(queues):
                    await p.send(Message("T", b"x"), queue=MessageQueue("T", broker, number))
                await until(lambda: seen.bodies.total() == before + queues)

            def committed(broker: str) -> list[int]:
                offsets = {"broker-a": frozen, "broker-b": other}[broker].broker.progress("g")
                return [offsets[MessageQueue("T", broker, number)] for number in range(queues)]

            await send_to("broker-a")
            frozen.pause()
            for count in range(1, 4):
                await asyncio.sleep(3.0)  # the commits to the frozen broker are under way
                await send_to("broker-b")
                await asyncio.sleep(1.5)
                assert committed("broker-b") == [count] * queues
            assert "not_committed" in [problem.code for problem in consumer.health().problems]
            frozen.resume()
            await asyncio.sleep(20.0)
            assert committed("broker-a") == [1] * queues
            assert not consumer.health().problems

    Simulation(7, faults=None).run(main)


async def test_locks_of_other_brokers_are_renewed_beside_commits_to_a_silent_one() -> None:
    """A broker that may be another process gets the offsets before it is asked for locks; each commit takes ``request_timeout``."""
    lost = set[str]()

    async def note(queues: frozenset[MessageQueue]) -> None:
        lost.update(queue.broker_name for queue in queues)

    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=64)
        async with member("g", server.namesrv, "one", Seen(), on_lost=note, request_timeout=20.0):
            server.stall("broker-a")
            server.drop_connections("broker-a")
            await until(lambda: lost, 90.0)
            await asyncio.sleep(30)
            server.resume("broker-a")
    assert lost == {"broker-a"}
