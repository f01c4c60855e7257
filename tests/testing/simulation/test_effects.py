"""Faults of storage, addresses, clocks and name servers have their effects, and the checkers know what they take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from rmq_async import (
    Admin,
    Consumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    TransactionProducer,
    TransactionStatus,
)
from rmq_async.errors import RequestTimeoutError, RocketMQError
from rmq_async.testing.simulation import GROUP_KINDS, KINDS, POP_KINDS, Faults, Simulation, SimulationError
from rmq_async.testing.simulation.effects import answers, beginnings, machines, storage

from ...simulation.cluster import Cluster

Main = Callable[[Simulation], Awaitable[None]]


def quiet(*, brokers: int = 1, name_servers: int = 1) -> Simulation:
    return Simulation(1, brokers=brokers, name_servers=name_servers, faults=None)


async def send(simulation: Simulation, count: int) -> list[str]:
    """Returns the unique ids of acknowledged messages."""
    async with Producer("group", namesrv=simulation.namesrv) as producer:
        return [(await producer.send(Message("T", b"%d" % number))).msg_id for number in range(count)]


async def queues(admin: Admin) -> int:
    return sum(data.write_queue_nums for data in (await admin.topic_route("T")).queue_datas)


def test_truncated_messages_are_a_named_loss() -> None:
    async def main(simulation: Simulation) -> None:
        ids = await send(simulation, 50)
        broker = simulation.brokers[0]
        effect = storage.truncate(simulation, Random(1), broker)
        effect.end()
        assert effect.met()
        assert broker.lost == ids[-len(broker.lost) :]
        assert len(broker.stored()) == 50 - len(broker.lost)
        assert len(await send(simulation, 5)) == 5

    simulation = quiet()
    simulation.run(main)
    simulation.check()
    taken = [event.details["messages"] for event in simulation.history if event.what == "truncate"]
    assert taken == [len(simulation.brokers[0].lost)]
    assert taken[0] in (1, 10)


def test_truncated_messages_without_their_name_are_lost() -> None:
    async def main(simulation: Simulation) -> None:
        await send(simulation, 50)
        simulation.brokers[0].truncate(3)
        simulation.brokers[0].lost.clear()

    simulation = quiet()
    simulation.run(main)
    with pytest.raises(SimulationError, match="3 violations\nlost: send"):
        simulation.check()


@pytest.mark.parametrize("seed", [1, 2], ids=["after a time without a master", "at once"])
def test_new_master_ends_the_connections(seed: int) -> None:
    async def main(simulation: Simulation) -> None:
        broker = simulation.brokers[0]
        async with Producer("group", namesrv=simulation.namesrv) as producer:
            await producer.send(Message("T", b"1"))
            before = broker.broker
            accepted = before.listener.accepted
            effect = storage.truncate(simulation, Random(seed), broker)
            await asyncio.sleep(1.0)
            assert broker.running is (seed == 2)
            effect.end()
            await asyncio.sleep(1.0)
            await producer.send(Message("T", b"2"))
            assert broker.broker is not before if seed == 1 else broker.broker.listener.accepted > accepted

    simulation = quiet()
    simulation.run(main)
    simulation.check()


@pytest.mark.parametrize("corrected", [True, False])
def test_deleted_messages_are_named_and_readers_pass_over_them(corrected: bool) -> None:
    async def main(simulation: Simulation) -> None:
        broker = simulation.brokers[0]
        await send(simulation, 80)
        queue = MessageQueue("T", "broker-a", 0)
        first, behind = broker.bounds(queue)
        assert first == 0
        assert broker.expire(queue, behind // 2, corrected=corrected) == behind // 2
        assert broker.bounds(queue)[0] == behind // 2
        assert len(broker.deleted) == behind // 2
        async with PullConsumer("readers", namesrv=simulation.namesrv) as consumer:
            read = [message async for message in consumer.read("T", start="earliest")]
        assert len(read) == 80 - behind // 2

    simulation = quiet()
    simulation.run(main)
    simulation.check()


def test_fault_deletes_messages_of_a_queue() -> None:
    async def main(simulation: Simulation) -> None:
        broker = simulation.brokers[0]
        assert storage.expire(simulation, None, Random(1), broker) is None  # there is no topic of a user
        await send(simulation, 80)
        effect = storage.expire(simulation, None, Random(1), broker)
        assert effect is not None
        assert effect.met() is bool(broker.deleted) is True

    quiet().run(main)


def test_resized_topic_has_its_queues_again() -> None:
    async def main(simulation: Simulation) -> None:
        broker, numbers = simulation.brokers[0], []
        assert storage.resize(simulation, Random(1), broker) is None
        async with Producer("group", namesrv=simulation.namesrv) as producer, Admin(namesrv=simulation.namesrv) as admin:

            async def sent() -> int:
                await producer.send(Message("T", b"1"))
                await asyncio.sleep(1.0)
                return await queues(admin)

            numbers.append(await sent())
            effect = storage.resize(simulation, Random(1), broker)
            assert effect is not None
            numbers.append(await sent())
            effect.end()
            numbers.append(await sent())
        assert effect.met()
        assert numbers[0] == numbers[2] != numbers[1]

    quiet().run(main)


def test_slow_disk_loses_more_to_a_power_loss() -> None:
    async def lost(simulation: Simulation, slow: bool) -> int:
        broker = simulation.brokers[0]
        effect = storage.slow_disk(Random(1), broker) if slow else None
        await send(simulation, 20)
        await asyncio.sleep(1.0)
        broker.power_loss()
        await asyncio.sleep(0.1)
        broker.restart()
        await asyncio.sleep(0.1)
        if effect is not None:
            effect.end()
            assert effect.met()
            assert broker.log.flush_interval == 0.5
        return len(broker.lost)

    for slow in (False, True):
        simulation = quiet()
        assert simulation.run(lambda simulation, slow=slow: lost(simulation, slow)) == (20 if slow else 0)  # type: ignore[misc]
        simulation.check()


@pytest.mark.parametrize("server", ["broker-a", "namesrv-0"])
def test_server_that_moved_is_found_at_its_new_address(server: str) -> None:
    async def main(simulation: Simulation) -> None:
        machine = next(each for each in (*simulation.brokers, *simulation.name_servers) if each.name == server)
        async with Producer("group", namesrv=simulation.namesrv) as producer:
            await producer.send(Message("T", b"1"))
            before, effect = machine.address, machines.move_server(simulation, Random(1), machine)
            await asyncio.sleep(1.0)
            effect.end()
            assert effect.met()
            await asyncio.sleep(40.0)  # brokers register every 30 s
            assert machine.address != before
            with suppress(RequestTimeoutError):  # the client may know the old address only
                await producer.send(Message("T", b"2"))
            await producer.send(Message("T", b"3"))
        async with Admin(namesrv=simulation.namesrv) as admin:
            brokers = (await admin.topic_route("T")).broker_datas
            assert [broker.broker_addrs[0] for broker in brokers] == [f"{simulation.brokers[0].address}:10911"]

    simulation = quiet()
    simulation.run(main)
    simulation.check()


def test_client_that_moved_sends_again() -> None:
    async def main(simulation: Simulation) -> None:
        ends: list[tuple[float, bool]] = []

        async def service() -> None:
            async with Producer("shop", namesrv=simulation.namesrv) as producer:
                while simulation.now < 60:
                    try:
                        await producer.send(Message("T", b"1"))
                        ends.append((simulation.now, True))
                    except RocketMQError:
                        ends.append((simulation.now, False))
                    await asyncio.sleep(0.5)

        machine = simulation.machine("shop")
        ended = machine.run(service)
        await asyncio.sleep(20.0)
        assert machines.move_client(simulation, Random(1), machine).met()
        await ended
        failed = [at for at, sent in ends if not sent]
        assert failed
        assert 20.0 < failed[0] <= failed[-1] < 40.0

    simulation = quiet()
    simulation.run(main)
    simulation.check()


def test_name_server_does_not_list_a_broker_that_it_has_forgotten() -> None:
    async def main(_: Simulation) -> None:
        simulation.group.topics = ("T",)
        effect = storage.forget(simulation, Random(1), simulation.name_servers[0])
        assert not simulation.routed
        assert set(simulation.group.look().unlisted) == {"broker-a"}
        effect.end()
        assert simulation.routed
        assert not simulation.group.look().unlisted

    simulation = Cluster(1, brokers=1, faults=None)
    simulation.run(main)


def test_name_server_that_forgets_a_broker_knows_it_again() -> None:
    async def main(simulation: Simulation) -> None:
        await send(simulation, 20)
        async with Admin(namesrv=simulation.namesrv) as admin:
            effect = storage.forget(simulation, Random(1), simulation.name_servers[0])
            assert len((await admin.topic_route("T")).broker_datas) == 1
            effect.end()
            await asyncio.sleep(31.0)
            assert len((await admin.topic_route("T")).broker_datas) == 2
        assert effect.met()

    quiet(brokers=2).run(main)


def test_name_servers_disagree_about_the_number_of_queues() -> None:
    async def main(simulation: Simulation) -> None:
        first, second = simulation.name_servers
        await send(simulation, 20)
        effect = storage.disagree(simulation, Random(1), first)
        numbers = []
        for server in (first, second):
            async with Admin(namesrv=f"{server.name}:9876") as admin:
                numbers.append(await queues(admin))
        assert numbers[0] != numbers[1]
        effect.end()
        assert effect.met()
        async with Admin(namesrv=f"{first.name}:9876") as admin:
            assert await queues(admin) == numbers[1]

    quiet(name_servers=2).run(main)


@pytest.mark.parametrize("kind", ["name-server-empty", "name-server-redirect", "name-server-silent"])
def test_fresh_producers_send_while_a_name_server_or_its_name_fails(kind: str) -> None:
    async def main(simulation: Simulation) -> None:
        await send(simulation, 1)
        await asyncio.sleep(5.0)  # both name servers know the topic
        begin, met = beginnings(simulation)[kind], 0
        for number in range(6):
            effect = begin(Random(number), 5.0)
            assert effect is not None
            assert len(await send(simulation, 1)) == 1
            effect.end()
            met += effect.met()
            await asyncio.sleep(1.0)
        assert met >= 3

    quiet(name_servers=2).run(main)


def test_clock_drifts_until_it_is_set_right() -> None:
    async def main(simulation: Simulation) -> None:
        async def clock() -> list[float]:
            ahead = []
            for _ in range(4):
                ahead.append(time.time() - 1_750_000_000.0 - simulation.now)
                await asyncio.sleep(10.0)
            return ahead

        machine = simulation.machine("shop")
        machine.drift(0.1)
        ended = machine.run(clock)
        await asyncio.sleep(15.0)
        machine.drift(-0.2)
        await asyncio.sleep(10.0)
        machine.skew(0.0)
        assert await ended == pytest.approx([0.0, 1.0, 0.5, 0.0], abs=1e-3)
        with pytest.raises(SimulationError, match="the clock of shop must be made to drift by a finite number, not None"):
            machine.drift(None)  # type: ignore[arg-type]

    quiet().run(main)


def test_commit_after_a_lost_check_is_stored_twice_and_no_violation() -> None:
    """The schedule that showed it: a check goes to a connection that is lost, and the commit names the copy before."""

    async def main(simulation: Simulation) -> None:
        async def service() -> None:
            async def execute(message: Message, _: object) -> TransactionStatus:
                link = simulation.link("shop", "broker-a")
                await asyncio.sleep(29.0)
                link.cut(one_way="broker-a")
                await asyncio.sleep(3.0)  # the broker checks 30 s after its start
                link.drop()
                link.heal()
                await asyncio.sleep(1.0)
                return TransactionStatus.COMMIT

            async with TransactionProducer(
                "shop", execute=execute, check=lambda message: TransactionStatus.COMMIT, namesrv=simulation.namesrv
            ) as producer:
                result = await producer.send_in_transaction(Message("T", b"17"))
                assert result.attempts == 1
                await asyncio.sleep(100.0)

        await simulation.machine("shop").run(service)

    simulation = quiet()
    simulation.run(main)
    simulation.check()
    assert sum(message.topic == "T" for message in simulation.brokers[0].stored()) == 2


def test_slow_loop_takes_time_for_each_turn_and_keeps_the_order_of_calls() -> None:
    async def main(simulation: Simulation) -> None:
        ran: list[tuple[str, float]] = []

        async def service() -> None:
            loop = asyncio.get_running_loop()
            for name in ("a", "b"):
                loop.call_soon(lambda name=name: ran.append((name, simulation.now)))  # type: ignore[misc]
            machine.slow(0.0)
            loop.call_soon(lambda: ran.append(("c", simulation.now)))
            await asyncio.sleep(0)
            ran.append(("d", simulation.now))
            began = simulation.now
            await asyncio.sleep(0)
            assert simulation.now == began

        machine = simulation.machine("shop")
        machine.slow(0.002)
        began = simulation.now
        await machine.run(service)
        assert [name for name, _ in ran] == ["a", "b", "c", "d"]
        assert began < ran[0][1] == ran[3][1] <= began + 0.004
        with pytest.raises(SimulationError, match="shop must be slowed by a finite, non-negative number of seconds, not -1"):
            machine.slow(-1)

    quiet().run(main)


def test_slow_client_is_met_and_fast_again() -> None:
    async def main(simulation: Simulation) -> None:
        async def service() -> None:
            await asyncio.sleep(1.0)
            await send(simulation, 3)

        machine = simulation.machine("shop")
        ended = machine.run(service)
        await asyncio.sleep(0.5)
        effect = machines.slow(Random(1), machine)
        await ended
        effect.end()
        assert effect.met()
        assert machine.loop.longest_turn == 0

    quiet().run(main)


def test_machine_without_threads_is_met_when_a_thread_is_refused() -> None:
    async def main(simulation: Simulation) -> None:
        called: list[MessageExt] = []

        async def service() -> None:
            consumer = Consumer("g", namesrv=simulation.namesrv, start_from="earliest")
            consumer.subscribe("T", called.append)
            async with consumer:
                await asyncio.sleep(30.0)

        machine = simulation.machine("shop")
        ended = machine.run(service)
        await asyncio.sleep(1.0)
        effect = machines.no_threads(Random(1), machine)
        effect.end()
        assert not effect.met()
        effect = machines.no_threads(Random(1), machine)
        await send(simulation, 3)
        await asyncio.sleep(5.0)
        effect.end()
        assert effect.met()
        assert not called
        await ended
        assert len(called) == 3

    quiet().run(main)


@pytest.mark.parametrize("seed", range(6))
def test_give_backs_are_refused_or_stored_silently(seed: int) -> None:
    """Both ways in which consumers give messages back, and nothing else."""

    async def main(simulation: Simulation) -> None:
        await send(simulation, 2)
        machine = simulation.brokers[0]
        effect = answers.not_taken_back(Random(seed), machine)
        async with Producer("p", namesrv=simulation.namesrv, request_timeout=1.0, retries=0) as producer:
            await producer.send(Message("T", b"x"))
            with pytest.raises(RocketMQError) as caught:
                await producer.send(Message("%RETRY%g", b"copy"), timeout=1.0)
        effect.end()
        assert effect.met()
        kept = [each for each in machine.stored() if each.topic == "%RETRY%g"]
        assert len(kept) == isinstance(caught.value, RequestTimeoutError)

    quiet(brokers=1).run(main)


def test_fault_strikes_one_broker_or_all_of_them_alike() -> None:
    async def main(simulation: Simulation) -> None:
        struck = []
        for seed in range(40):
            effect = beginnings(simulation)["broker-slices"](Random(seed), 1.0)
            assert effect is not None
            slices = [each.broker.listener.gate.slices for each in simulation.brokers]
            states = [chance.getstate() for chance in slices if chance is not None]
            assert states.count(states[0]) == len(states)
            struck.append(len(states))
            effect.end()
            assert not effect.met()
        assert struck.count(1) > struck.count(2) > 0
        assert struck.count(0) == 0

    quiet(brokers=2).run(main)


def test_fault_without_a_target_is_named() -> None:
    async def main(simulation: Simulation) -> None:
        await asyncio.sleep(60.0)  # nothing runs but the function itself

    simulation = Simulation(1, faults=Faults(frozenset(["client-move", "broker-expire"]), rate=60.0))
    simulation.run(main)
    assert simulation.faults_unmet == ["broker-expire", "client-move"]
    assert not simulation.faults_met


def test_page_has_every_kind_of_fault() -> None:
    page = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text()
    assert [kind for kind in (*KINDS, *POP_KINDS, *GROUP_KINDS) if f"`{kind}`" not in page] == []
