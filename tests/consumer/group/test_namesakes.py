"""Two processes with one client id, as containers with one IP address and a fixed ``instance_name`` are: each names the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async import Consumer, SubscriptionConflictError
from rmq_async import machine as library
from rmq_async.consumer.group.conflicts import Namesakes
from rmq_async.consumer.group.subscription_check import GroupView
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData, MessageModel

from .support import Seen, create

TWICE = "duplicate_client_id"
BROKER = "10.0.0.4:10911"


def twin(s: Simulation, **options: Any) -> Consumer:
    by_hand, order = options.pop("by_hand", False), options.pop("order", None)
    fixed = {"namesrv": s.namesrv, "instance_name": "worker", "client_ip": "172.17.0.2", **options}
    if by_hand:
        return Consumer("g", topics="T", **fixed)
    consumer = Consumer("g", **fixed)
    consumer.subscribe("T", Seen(), order=order)
    return consumer


def codes(consumer: Consumer) -> list[str]:
    return [problem.code for problem in consumer.health().problems]


class Twins:
    """The members of two machines; ``begin`` starts one that runs until ``end``. ``ended``: how each start has ended."""

    def __init__(self, s: Simulation, **options: Any) -> None:
        self.s = s
        self.options = options
        self.members: dict[str, Consumer] = {}
        self.errors: dict[str, BaseException] = {}
        self._ends: dict[str, asyncio.Event] = {}
        self._running: dict[str, asyncio.Future[None]] = {}

    def begin(self, name: str) -> None:
        async def serve() -> None:
            self._ends[name] = asyncio.Event()
            try:
                async with twin(self.s, **self.options) as self.members[name]:
                    while not self._ends[name].is_set():
                        await asyncio.sleep(0.1)
            except SubscriptionConflictError as error:
                self.errors[name] = error

        self._running[name] = self.s.machine(name).run(serve)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._running[name]


@pytest.mark.parametrize(
    ("options", "effect"),
    [
        ({}, "both take the same queues"),
        ({"order": "key"}, "both take the same queues"),
        ({"by_hand": True}, "both take the same queues"),
        ({"mode": "pop"}, "reach only one of them, and the group looks smaller"),
        ({"broadcast": True}, "requests of brokers and tools reach only one of them"),
    ],
    ids=["pull", "order", "by hand", "pop", "broadcast"],
)
def test_each_of_two_processes_names_the_other_until_it_is_gone(
    options: dict[str, Any], effect: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)
        twins = Twins(s, **options)
        twins.begin("one")
        await asyncio.sleep(5)
        assert codes(twins.members["one"]) == []
        twins.begin("two")
        await asyncio.sleep(80)
        for member in twins.members.values():
            (problem,) = member.health().problems
            assert problem.code == TWICE
            assert problem.text.startswith("client id 172.17.0.2@worker of group g is also used by another process (10.0.0.")
            assert effect in problem.text
            assert "its own instance_name" in problem.text
            assert member.health().ready
        await twins.end("two")
        await asyncio.sleep(160)
        assert codes(twins.members["one"]) == []
        await twins.end("one")

    with caplog.at_level(logging.WARNING, "rmq_async.consumer.group.conflicts"):
        Simulation(1, faults=None).run(main)
    assert len([each for each in caplog.records if each.name.endswith("conflicts")]) == 2  # one of each


def test_process_with_the_id_of_another_one_is_refused_where_that_is_asked_for() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        twins = Twins(s, on_conflict="raise")
        twins.begin("one")
        await asyncio.sleep(5)
        twins.begin("two")
        await asyncio.sleep(5)
        assert list(twins.errors) == ["two"]
        assert "is also used by another process" in str(twins.errors["two"])
        await twins.end("one")
        twins.begin("two")
        await asyncio.sleep(5)
        assert codes(twins.members["two"]) == []
        await twins.end("two")

    Simulation(1, faults=None).run(main)


def test_processes_that_start_at_the_same_time_are_refused() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        twins = Twins(s, on_conflict="raise")
        twins.begin("one")
        twins.begin("two")
        await asyncio.sleep(10)
        assert twins.errors
        for name in {"one", "two"} - twins.errors.keys():
            await twins.end(name)

    Simulation(1, faults=None).run(main)


def test_process_that_answers_no_requests_is_named_after_130_seconds() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        for broker in s.brokers:
            broker.broker.failures.add(1, 1000, RequestCode.GET_CONSUMER_RUNNING_INFO)
        twins = Twins(s)
        twins.begin("one")
        await asyncio.sleep(1)
        twins.begin("two")
        await asyncio.sleep(125)
        assert [codes(member) for member in twins.members.values()] == [[], []]
        await asyncio.sleep(95)
        assert [codes(member) for member in twins.members.values()] == [[TWICE], [TWICE]]
        for name in ("one", "two"):
            await twins.end(name)

    Simulation(1, faults=None).run(main)


def test_own_connection_that_a_broker_still_lists_is_no_other_process() -> None:
    """The machine gets another address; the broker does not hear that the old connection has ended."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        twins, seen = Twins(s), list[str]()
        twins.begin("one")
        await asyncio.sleep(5)
        s.machine("one").move("10.0.9.9")
        listed_twice = 0
        for _ in range(60):
            await asyncio.sleep(5)
            seen += codes(twins.members["one"])
            group = s.brokers[0].broker.state.clients.consumers.get("g")
            listed_twice += group is not None and len(group.members) > 1
        assert listed_twice >= 10
        assert TWICE not in seen
        await twins.end("one")

    Simulation(1, faults=None).run(main)


# -- behind NAT, where a broker sees other addresses than the member has


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Translated:
    """A connection. ``local_address``: not the one that the broker sees."""

    local_address = "172.17.0.2:40000"


class Behind:
    """A member whose connection the broker sees under another address."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(library, "monotonic", self.clock)
        self.connected()
        pool = SimpleNamespace(get=lambda address: self.connection if address == BROKER else None, request=self._request)
        instance: Any = SimpleNamespace(pool=pool, client_id="172.17.0.2@worker", config=SimpleNamespace(request_timeout=3.0))
        self.namesakes = Namesakes(instance, ConsumerData("g", message_model=MessageModel.CLUSTERING), lambda: None)
        self.asked = 0

    def connected(self) -> None:
        self.connection = Translated()

    async def _request(self, *_: object) -> Any:
        self.asked += 1
        raise AssertionError("no entry is surely another process's")

    async def look(self, places: Iterable[str], after: float) -> bool:
        """Looks ``after`` seconds later; returns whether another process is named."""
        self.clock.now += after
        view = GroupView({}, frozenset([BROKER]), (), frozenset(), {BROKER: frozenset(places)})
        await self.namesakes.look(view, joined=True)
        return self.namesakes.found is not None


async def test_behind_nat_two_entries_for_one_connection_count_after_130_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    behind, places = Behind(monkeypatch), ("192.0.2.1:1", "192.0.2.1:2")
    assert [await behind.look(places, 20) for _ in range(9)] == [False] * 9
    assert [await behind.look(places, 20) for _ in range(2)] == [True] * 2
    assert behind.namesakes.found is not None
    assert "seen by 10.0.0.4:10911" in behind.namesakes.found
    assert not await behind.look(places[:1], 20)


async def test_behind_nat_new_connection_beside_the_former_one_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = Behind(monkeypatch)
    for number in range(20):
        behind.connected()  # each 100 s another one, and the broker lists the one before too
        for _ in range(5):
            assert not await behind.look((f"192.0.2.1:{number}", f"192.0.2.1:{number + 1}"), 20)


async def test_broker_that_was_paused_does_not_make_an_entry_old(monkeypatch: pytest.MonkeyPatch) -> None:
    behind, places = Behind(monkeypatch), ("192.0.2.1:1", "192.0.2.1:2")
    assert [await behind.look(places, 20) for _ in range(6)] == [False] * 6
    assert not await behind.look(places, 60)  # listed for 160 s, of which the broker was paused for the last 60
    assert not await behind.look(places[:1], 15)
