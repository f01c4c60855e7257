"""RouteTable: one request for any number of callers, and no bad answer in the place of a good route."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

import pytest

from rmq_async.client import route_table
from rmq_async.client.name_servers import NameServers, NoUsableAnswerError
from rmq_async.client.route_table import UNUSED_POLLS, RouteTable, TopicRoute, TopicUse
from rmq_async.config import ClientConfig
from rmq_async.errors import ClientStateError, NameServerError, TopicNotFoundError
from rmq_async.transport import ConnectionPool
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData, encode_route

from ..support.fakes import Link, NameServer, cut, route, silence
from .support import GARBAGE, until

BAD_ANSWERS: dict[str, Any] = {
    "empty": TopicRouteData(),
    "queues without brokers": TopicRouteData(queue_datas=(QueueData("broker-a", 8, 8, 6),)),
    "no permission at all": route(perm=0),
    "addresses no client can connect to": route("127.0.0.1:70000", queues=8),
    "address without port": route("broker", queues=8),
    "port zero": route("127.0.0.1:0", queues=8),
    "a million queues": route(queues=1_000_000),
    "negative queues": route(queues=-5),
    "no such topic": (17, "No topic route info"),
    "not ready": (1, "name server not ready"),
    "garbage": GARBAGE,
    "no body": b"",
    "not an object": b"[1,2]",
    "hangs up": cut,
    "silence": silence,
}


@asynccontextmanager
async def table(*servers: NameServer, poll: float = 30.0, timeout: float = 0.3) -> AsyncIterator[RouteTable]:
    pool = ConnectionPool(ClientConfig(namesrv="127.0.0.1:1"))
    routes = RouteTable(NameServers(pool, [s.address for s in servers]), request_timeout=timeout, poll_interval=poll)
    polling = asyncio.ensure_future(routes.poll())
    try:
        yield routes
    finally:
        polling.cancel()
        await asyncio.gather(polling, *routes.close(), return_exceptions=True)
        await pool.aclose()


# Looking up.


async def test_500_first_look_ups_make_one_request() -> None:
    async with NameServer(t=route()) as server, table(server) as routes:
        assert routes.cached("t") is None
        found = await asyncio.gather(*[routes.get("t", 1.0, create_key="TBW102") for _ in range(500)])
        assert server.asked == ["t"]
        assert all(each is found[0] for each in found)
        assert routes.cached("t") is found[0]
        assert len(found[0].publish_queues) == 4
        assert await routes.get("t", 1.0) is found[0]
        assert server.asked == ["t"]


async def test_500_first_look_ups_of_an_unknown_topic_make_one_more(caplog: pytest.LogCaptureFixture) -> None:
    model = route(queues=8)
    async with NameServer(TBW102=model) as server, table(server) as routes:
        found = await asyncio.gather(*[routes.get("new", 1.0, create_key="TBW102") for _ in range(500)])
        assert server.asked == ["new", "TBW102"]
        assert found[0].provisional
        assert [queue.queue_id for queue in found[0].publish_queues] == [0, 1, 2, 3]
        assert {queue.topic for queue in found[0].publish_queues} == {"new"}
        assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
            "topic new does not exist: the first message creates it on broker-a with 4 queues each, or on only some of these "
            "brokers; do not rely on this in production, create topics beforehand"
        ]
        assert routes.topics == ("new",), "the model is not a topic in use"
        server.routes["new"] = route(queues=3)
        await routes.refresh_all()
        real = routes.cached("new")
        assert real is not None
        assert not real.provisional
        assert len(real.publish_queues) == 3
        assert real.version > found[0].version


async def test_fewer_queues_are_made_where_the_model_has_fewer() -> None:
    async with NameServer(TBW102=route(queues=2)) as server, table(server) as routes:
        assert len((await routes.get("new", 1.0, create_key="TBW102", default_queues=9)).publish_queues) == 2


async def test_many_cold_topics_share_the_look_up_of_the_model() -> None:
    async with NameServer(TBW102=route()) as server, table(server) as routes:
        await asyncio.gather(*[routes.get(f"t{n}", 1.0, create_key="TBW102") for n in range(20)])
        assert len(server.asked) <= 20 + 2


async def test_a_provisional_route_is_for_those_who_may_create_the_topic() -> None:
    async with NameServer(TBW102=route()) as server, table(server) as routes:
        await routes.get("new", 1.0, create_key="TBW102")
        with pytest.raises(TopicNotFoundError):
            await routes.get("new", 1.0)
        server.routes["new"] = route(queues=1)
        assert len((await routes.get("new", 1.0)).publish_queues) == 1


async def test_an_unknown_topic_differs_from_an_unreachable_name_server() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        closed_one = NameServer()
        closed_one.port = closed.getsockname()[1]
        async with table(closed_one) as routes:
            with pytest.raises(NameServerError, match="cannot connect"):
                await routes.get("t", 1.0, create_key="TBW102")
    async with NameServer() as server, table(server) as routes:
        with pytest.raises(TopicNotFoundError, match="No topic route info") as caught:
            await routes.get("t", 1.0)
        assert caught.value.address == server.address
        assert caught.value.code == 10005
        assert "http" not in str(caught.value)  # a stock name server adds a link to its questions and answers
        with pytest.raises(TopicNotFoundError, match="autoCreateTopicEnable") as caught:
            await routes.get("t", 1.0, create_key="TBW102")
        assert server.address in str(caught.value)
        server.routes["t"] = GARBAGE
        with pytest.raises(NoUsableAnswerError, match="route cannot be read"):
            await routes.get("t", 1.0)
        server.routes["t"] = TopicRouteData()
        with pytest.raises(TopicNotFoundError, match="no queues"):
            await routes.get("t", 1.0)
        assert routes.lookups == 0


@pytest.mark.virtual_time
async def test_each_caller_waits_as_long_as_it_wants_to() -> None:
    async with (
        NameServer(t=lambda link, request: link.reply_later(0.8, request, body=encode_route(route()))) as server,
        table(server, timeout=2.0) as routes,
    ):
        patient = asyncio.ensure_future(routes.get("t", 3.0))
        start = monotonic()
        with pytest.raises(NameServerError, match=r"within 0\.1 s"):
            await routes.get("t", 0.1)
        assert monotonic() - start == pytest.approx(0.1, abs=0.01)
        assert (await patient).topic == "t"
        assert server.asked == ["t"]


@pytest.mark.virtual_time
async def test_a_silent_name_server_ends_the_wait_by_its_deadline() -> None:
    async with NameServer(t=silence) as server, table(server) as routes:
        start = monotonic()
        with pytest.raises(NameServerError, match="no response"):
            await routes.get("t", 0.5)
        assert 0.25 < monotonic() - start <= 0.5


@pytest.mark.virtual_time
async def test_cancelled_callers_do_not_stop_the_look_up() -> None:
    async with (
        NameServer(t=lambda link, request: link.reply_later(0.05, request, body=encode_route(route()))) as server,
        table(server) as routes,
    ):
        callers = [asyncio.ensure_future(routes.get("t", 1.0, create_key="TBW102")) for _ in range(100)]
        await asyncio.sleep(0.01)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        assert routes.lookups > 0
        await until(lambda: routes.cached("t") is not None)
        assert server.asked == ["t"]


@pytest.mark.virtual_time
async def test_closing_fails_those_who_wait() -> None:
    async with NameServer(t=silence) as server, table(server) as routes:
        caller = asyncio.ensure_future(routes.get("t", 5.0))
        await asyncio.sleep(0.01)
        await asyncio.gather(*routes.close(), return_exceptions=True)
        with pytest.raises(ClientStateError):
            await caller


# Keeping.


@pytest.mark.virtual_time
@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_a_bad_answer_leaves_the_old_route_in_use(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with NameServer(t=route()) as server, table(server) as routes:
        good = await routes.get("t", 1.0)
        server.routes["t"] = bad
        for _ in range(2):
            await routes.refresh_all()
            assert routes.cached("t") is good
        assert await routes.refresh("t") is good
        assert any(record.levelno == logging.WARNING for record in caplog.records)
        assert list(routes.master_addresses()) == ["127.0.0.1:1"]
        server.routes["t"] = route(queues=6)
        deadline = monotonic() + 2.0  # a server that hung up is left alone for a moment
        while queues(routes) == 4 and monotonic() < deadline:
            await routes.refresh_all()
        assert queues(routes) == 6


async def test_a_name_server_that_forgot_a_topic_is_complained_about_once(caplog: pytest.LogCaptureFixture) -> None:
    async with NameServer(t=route()) as server, table(server) as routes:
        await routes.get("t", 1.0)
        server.routes.clear()
        for _ in range(5):
            await routes.refresh_all()
        warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "the old route stays in use" in warnings[0]


async def test_another_name_server_is_asked_after_garbage() -> None:
    async with NameServer(t=GARBAGE) as liar, NameServer(t=route()) as honest, table(liar, honest) as routes:
        for _ in range(3):
            await routes.refresh("t")
        assert len(routes.topics) == 1
        assert liar.asked.count("t") <= 2  # once beside the other


async def test_the_version_changes_with_the_route_only() -> None:
    two = TopicRouteData(
        queue_datas=(QueueData("b", 4, 4, 6), QueueData("a", 4, 4, 6)),
        broker_datas=(BrokerData("a", {0: "127.0.0.1:1"}), BrokerData("b", {0: "127.0.0.1:2"})),
    )
    turned = TopicRouteData(queue_datas=two.queue_datas[::-1], broker_datas=two.broker_datas[::-1])
    async with NameServer(t=two) as server, table(server) as routes:
        changes: list[TopicRoute] = []
        routes.on_change.append(changes.append)
        first = await routes.get("t", 1.0)
        for same in (two, turned, encode_route(two, standard=False), two):
            server.routes["t"] = same
            assert await routes.refresh("t") is first
        server.routes["t"] = route()
        second = await routes.refresh("t")
        assert second.version > first.version
        assert changes == [first, second]


async def test_a_read_only_topic_is_a_good_answer() -> None:
    async with NameServer(t=route()) as server, table(server) as routes:
        await routes.get("t", 1.0)
        server.routes["t"] = route(perm=4)
        read_only = await routes.refresh("t")
        assert (len(read_only.publish_queues), len(read_only.subscribe_queues)) == (0, 4)


@pytest.mark.virtual_time
async def test_topics_in_use_are_polled() -> None:
    async with NameServer(t=route(), u=route()) as server, table(server, poll=0.05) as routes:
        await routes.get("t", 1.0)
        await routes.get("u", 1.0)
        server.routes["t"] = route(queues=16)
        start = monotonic()
        await until(lambda: queues(routes) == 16)
        assert monotonic() - start == pytest.approx(0.05, abs=0.01)
        await until(lambda: server.asked.count("u") > 3)


@pytest.mark.virtual_time
async def test_polling_goes_on_when_the_first_name_server_dies(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with NameServer(t=route()) as one, NameServer(t=route()) as two, table(one, two, poll=0.05) as routes:
        await routes.get("t", 1.0)
        first, second = (one, two) if one.asked else (two, one)
        await first.stop()
        second.routes["t"] = route(queues=9)
        await until(lambda: queues(routes) == 9)
        await second.stop()
        await until(lambda: any("cannot refresh" in record.message for record in caplog.records))
        await first.start()
        await until(lambda: any("respond again" in record.message for record in caplog.records))
        assert queues(routes) in (4, 9)


@pytest.mark.virtual_time
async def test_a_sweep_leaves_forgotten_topics_out() -> None:
    """It goes by a list of topics that is older than what the poll beside it has forgotten meanwhile."""
    held: dict[str, tuple[Link, RemotingCommand]] = {}

    def hold(link: Link, request: RemotingCommand) -> None:
        held[(request.ext_fields or {})["topic"] or ""] = (link, request)

    def release(topic: str) -> None:
        server.routes[topic] = route()
        link, request = held.pop(topic)
        link.reply(request, body=encode_route(route()))

    async with NameServer(t=route(), u=route(), v=route()) as server, table(server, poll=0.01, timeout=5.0) as routes:
        for topic in ("t", "u", "v"):
            await routes.get(topic, 1.0)
            routes.use.hold(topic)
        routes.use.release("u")
        forgotten = False
        while not forgotten:
            server.routes["v"] = hold
            await until(lambda: "v" in held)  # the poll has done with u
            server.routes["t"] = hold
            sweep = asyncio.ensure_future(routes.refresh_all())
            await until(lambda: "t" in held)
            asked = server.asked.count("u")
            release("v")
            with suppress(AssertionError):
                await until(lambda: "u" not in routes.topics, 0.02)
            forgotten = "u" not in routes.topics
            release("t")
            await sweep
        assert routes.topics == ("t", "v")
        assert server.asked.count("u") == asked


@pytest.mark.virtual_time
async def test_a_round_of_refreshes_stops_at_the_first_silence() -> None:
    async with NameServer(**{f"t{n}": route() for n in range(10)}) as server, table(server, timeout=0.1) as routes:
        for n in range(10):
            await routes.get(f"t{n}", 1.0)
        server.serve = silence
        start = monotonic()
        await routes.refresh_all()
        assert monotonic() - start < 0.2


async def test_a_look_takes_nothing_into_use() -> None:
    async with NameServer(t=route()) as server, table(server) as routes:
        assert (await routes.fetch("t", 1.0)).topic == "t"
        assert routes.topics == ()
        await routes.get("t", 1.0)
        server.routes["t"] = route(queues=7)
        assert len((await routes.fetch("t", 1.0)).publish_queues) == 7
        assert queues(routes) == 7
        server.routes.clear()
        with pytest.raises(TopicNotFoundError):
            await routes.fetch("t", 1.0)


@pytest.mark.virtual_time
async def test_a_thousand_errors_make_few_refreshes() -> None:
    async with NameServer(t=route()) as server, table(server) as routes:
        await routes.get("t", 1.0)
        for _ in range(50):
            for _ in range(20):
                routes.refresh_soon("t")
            await asyncio.sleep(0.002)
        await until(lambda: server.asked.count("t") == 2)
        server.routes["t"] = route(queues=5)
        await until(lambda: queues(routes) == 5, 2.0)
        assert server.asked.count("t") == 3


@pytest.mark.virtual_time
async def test_refresh_soon_after_close_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "REFRESH_SPACING", 0.05)
    async with NameServer(t=route()) as server, table(server) as routes:
        await routes.get("t", 1.0)
        await asyncio.gather(*routes.close(), return_exceptions=True)
        for _ in range(3):
            routes.refresh_soon("t")
        assert routes.lookups == 0
        await asyncio.sleep(0.1)
        assert (routes.lookups, server.asked.count("t")) == (0, 1)


# Brokers.


async def test_the_newest_route_says_where_a_broker_is() -> None:
    async with NameServer(t=route("127.0.0.1:11"), u=route("127.0.0.1:11")) as server, table(server) as routes:
        await routes.get("t", 1.0)
        await routes.get("u", 1.0)
        assert routes.address_of("broker-a") == "127.0.0.1:11"
        server.routes["t"] = route("127.0.0.1:22")
        moved = await routes.refresh("t")
        assert routes.address_of("broker-a") == moved.master_address("broker-a") == "127.0.0.1:22"
        assert routes.address_of("broker-b") is None
        assert moved.master_address("broker-b") is None
        server.routes["t"] = server.routes["u"] = route(name="broker-b")
        await routes.refresh_all()
        assert routes.address_of("broker-a") is None
        assert routes.addresses_of("broker-b") == {0: "127.0.0.1:1"}


@pytest.mark.virtual_time
async def test_losing_a_broker_in_use_refreshes_the_routes() -> None:
    async with NameServer(t=route("127.0.0.1:11")) as server, table(server) as routes:
        await routes.get("t", 1.0)
        routes.broker_lost("127.0.0.1:99")
        routes.broker_lost("127.0.0.1:11")
        routes.broker_lost("127.0.0.1:11")
        server.routes["t"] = route("127.0.0.1:22")
        await until(lambda: routes.address_of("broker-a") == "127.0.0.1:22", 1.0)
        assert server.asked.count("t") == 2


async def test_the_request_asks_for_standard_json() -> None:
    asked: list[RemotingCommand] = []

    def keep(link: Link, request: RemotingCommand) -> None:
        asked.append(request)
        link.reply(request, body=encode_route(route()))

    async with NameServer(t=keep) as server, table(server) as routes:
        await routes.get("t", 1.0)
    assert (asked[0].code, asked[0].ext_fields) == (
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        {"topic": "t", "acceptStandardJsonOnly": "true"},
    )


def queues(routes: RouteTable) -> int:
    """How many queues the route in use has."""
    found = routes.cached("t")
    assert found is not None, "the route is gone"
    return len(found.publish_queues)


def test_topics_unused_for_equally_long_are_due_in_the_order_of_the_poll() -> None:
    topics = [f"Topic{number}" for number in range(24)]
    use = TopicUse()
    due = [use.count_poll(dict.fromkeys(topics, True)) for _ in range(UNUSED_POLLS)]
    assert due == [[]] * (UNUSED_POLLS - 1) + [topics]


# Log records, and routes that cannot be used.


async def test_change_of_a_route_is_one_record_with_the_queues_before_and_after(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    a, b = "127.0.0.1:1", "127.0.0.1:2"
    async with NameServer(t=route({"a": a, "b": b})) as server, table(server) as routes:
        await routes.get("t", 1.0)
        assert caplog.messages == []
        for changed in (
            route({"a": a}),
            route({"a": "127.0.0.1:3"}, queues=8),
            TopicRouteData((QueueData("a", 8, 2, 6),), (BrokerData("a", {0: "127.0.0.1:3"}),)),
            route({"a": "127.0.0.1:3"}, perm=4),
        ):
            server.routes["t"] = changed
            await routes.refresh("t")
            await routes.refresh("t")
        assert caplog.messages == [
            "route of topic t: a 4, b 4 -> a 4",
            "route of topic t: a 4 -> a 8; a is now at 127.0.0.1:3",
            "route of topic t: a 8 -> a 2 to write, 8 to read",
            "route of topic t: a 2 to write, 8 to read -> a 0 to write, 4 to read",
        ]
        assert {record.levelname for record in caplog.records} == {"INFO"}


async def test_first_route_of_a_topic_made_by_sending_is_no_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with NameServer(TBW102=route()) as server, table(server) as routes:
        await routes.get("t", 1.0, create_key="TBW102")
        server.routes["t"] = route()
        await routes.refresh("t")
        assert [record.message for record in caplog.records if record.levelno == logging.INFO] == []


@pytest.mark.parametrize("create_key", [None, "TBW102"])
async def test_addresses_that_no_client_can_connect_to_are_named(create_key: str | None) -> None:
    wrong = route({"a": "broker", "b": "10.0.0.1:0"})
    async with NameServer(t=wrong, TBW102=wrong) as server, table(server) as routes:
        with pytest.raises(TopicNotFoundError) as caught:
            await routes.get("t", 1.0, create_key=create_key)
        assert str(caught.value) == (
            f"topic t has no usable route at name server {server.address}: no client can connect to a at 'broker', b at "
            "'10.0.0.1:0'; an address must be host:port; correct brokerIP1 and listenPort of the broker"
        )
        with pytest.raises(TopicNotFoundError, match="no client can connect to a at 'broker'"):
            await routes.get("unknown", 1.0, create_key="TBW102")


async def test_address_that_no_client_can_connect_to_beside_a_good_one(caplog: pytest.LogCaptureFixture) -> None:
    async with NameServer(t=route({"a": "127.0.0.1:1", "b": "broker:"})) as server, table(server) as routes:
        assert len((await routes.get("t", 1.0)).publish_queues) == 4
        await routes.refresh("t")
        assert [record.message for record in caplog.records] == [
            "route of topic t: no client can connect to b at 'broker:'; an address must be host:port; correct brokerIP1 and "
            "listenPort of the broker"
        ]
