"""The fault switches, as a client sees them."""

from __future__ import annotations

import asyncio
import time

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import HeartbeatData, encode_heartbeat

from ..support.fakes import RawClient, oneway, send_fields

pytestmark = pytest.mark.virtual_time

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


async def test_the_next_requests_fail_and_are_not_served(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.fail_next(2, 3)
    assert [(await broker.send("T")).code for _ in range(5)] == [2, 2, 2, 0, 0]
    assert len(server.messages("T")) == 2


async def test_failures_asked_for_first_come_first(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.fail_next(2)
    server.fail_next(14, 2)
    assert [(await broker.send("T")).code for _ in range(4)] == [2, 14, 14, 0]


async def test_failures_of_any_request_leave_heartbeats_and_routes_alone(
    server: EmbeddedRocketMQ, broker: RawClient, names: RawClient
) -> None:
    server.fail_next(1)
    assert (await broker.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(HeartbeatData("c")))).code == 0
    assert (await broker.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c"})).code == 0
    assert (await names.ask(ROUTE, {"topic": "TBW102"})).code == 0
    assert (await broker.pull("TBW102")).code == 1
    assert (await broker.pull("TBW102")).code == 19


@pytest.mark.parametrize(("request_code", "at_names"), [(ROUTE, True), (RequestCode.HEART_BEAT, False), (9999, False)])
async def test_a_named_request_fails_wherever_it_is_served(
    server: EmbeddedRocketMQ, broker: RawClient, names: RawClient, request_code: int, at_names: bool
) -> None:
    server.fail_next(17, 1, request=request_code)
    assert (await broker.send("T")).code == 0
    assert (await (names if at_names else broker).ask(request_code, {"topic": "TBW102"})).code == 17


async def test_failures_can_be_taken_back(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.fail_next(2, 100)
    server.fail_next(16, 1, request=310)
    server.fail_next(2, 0)
    assert [(await broker.send("T")).code for _ in range(2)] == [16, 0]
    with pytest.raises(ValueError, match="negative"):
        server.fail_next(2, -1)
    with pytest.raises(TypeError, match=r"^n must be a whole number, not 1\.5$"):
        server.fail_next(2, 1.5)  # type: ignore[arg-type]


async def test_a_code_that_is_no_number_is_refused_with_where_to_find_them(server: EmbeddedRocketMQ) -> None:
    with pytest.raises(TypeError, match=r"^code must be a whole number, such as ResponseCode\.SYSTEM_BUSY \(of rmq_protocol"):
        server.fail_next("SYSTEM_BUSY")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^request must be a whole number, such as RequestCode\.PULL_MESSAGE"):
        server.fail_next(2, request="PULL")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^request must be a whole number, such as RequestCode\.PULL_MESSAGE .*, not 11\.5$"):
        server.lose_answers(request=11.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_codes_that_mean_stored_store(server: EmbeddedRocketMQ, broker: RawClient, code: int) -> None:
    server.fail_next(code)
    response = await broker.send("T")
    assert response.code == code
    assert set(response.ext_fields or {}) >= {"msgId", "queueId", "queueOffset"}
    assert len(server.messages("T")) == 1
    server.fail_next(code)
    assert (await broker.send("a b")).code == 29


async def test_a_oneway_request_that_fails_is_dropped(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.fail_next(2)
    for _ in range(2):
        broker.write(310, send_fields("T"), b"x", flag=oneway())
    assert await broker.offset(RequestCode.GET_MAX_OFFSET, "T") == 1


async def test_delay_holds_answers_back_and_keeps_their_order(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.delay(0.2)
    start = time.monotonic()
    opaques = [broker.write(310, send_fields("T"), b"x") for _ in range(3)]
    assert [(await broker.read()).opaque for _ in range(3)] == opaques
    assert time.monotonic() - start == pytest.approx(0.2, abs=0.01)
    server.delay(0)
    start = time.monotonic()
    await broker.send("T")
    assert time.monotonic() - start < 0.01
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="delay"):
            server.delay(wrong)
    with pytest.raises(TypeError, match=r"^a delay must be a number, not '1'$"):
        server.delay("1")  # type: ignore[arg-type]


async def test_delay_of_one_broker_leaves_the_others_alone() -> None:
    async with (
        EmbeddedRocketMQ(brokers=2) as server,
        RawClient(server.brokers["broker-a"]) as a,
        RawClient(server.brokers["broker-b"]) as b,
    ):
        server.delay(30.0, broker="broker-b")
        b.write(310, send_fields("T"), b"x")
        assert (await a.send("T")).code == 0
        with pytest.raises(TimeoutError):
            await b.read(0.1)
        assert len(server.messages("T")) == 2


async def test_a_stalled_broker_reads_and_answers_nothing_until_resumed(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.send("T")
    server.stall()
    opaque = broker.write(310, send_fields("T"), b"late")
    async with RawClient(server.brokers["broker-a"]) as late:
        late.write(310, send_fields("T"), b"late")
        with pytest.raises(TimeoutError):
            await broker.read(0.15)
        assert len(server.messages("T")) == 1
        server.resume()
        assert (await broker.read()).opaque == opaque
        assert (await late.read()).code == 0
    assert len(server.messages("T")) == 3


async def test_a_stall_keeps_delayed_answers(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.delay(0.1)
    broker.write(310, send_fields("T"), b"x")
    while not server.messages("T"):
        await asyncio.sleep(0.005)
    server.stall("broker-a")
    with pytest.raises(TimeoutError):
        await broker.read(0.3)
    server.resume("broker-a")
    assert (await broker.read()).code == 0


async def test_the_name_server_can_be_stalled_by_name(server: EmbeddedRocketMQ, broker: RawClient, names: RawClient) -> None:
    server.stall("namesrv")
    names.write(ROUTE, {"topic": "TBW102"})
    assert (await broker.send("T")).code == 0
    with pytest.raises(TimeoutError):
        await names.read(0.1)
    server.resume()
    with pytest.raises(TimeoutError):
        await names.read(0.1)
    server.resume("namesrv")
    assert (await names.read()).code == 0


async def test_stop_works_while_stalled_and_delayed(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.delay(30.0)
    broker.write(310, send_fields("T"), b"x")
    await asyncio.sleep(0.02)
    server.stall()
    broker.write(310, send_fields("T"), b"x")
    await server.stop()
    assert await broker.is_closed()
    await server.start()
    async with RawClient(server.brokers["broker-a"]) as again:
        assert (await again.send("T")).code == 0


async def test_dropped_connections_are_reset_and_new_ones_served(
    server: EmbeddedRocketMQ, broker: RawClient, names: RawClient
) -> None:
    await broker.send("T")
    await names.ask(ROUTE, {"topic": "T"})
    server.drop_connections()
    assert await broker.is_closed()
    assert (await names.ask(ROUTE, {"topic": "T"})).code == 0
    async with RawClient(server.brokers["broker-a"]) as again:
        assert (await again.send("T")).code == 0
    server.drop_connections("namesrv")
    assert await names.is_closed()


@pytest.mark.parametrize("switch", ["stall", "resume", "drop_connections"])
async def test_unknown_servers_are_refused_by_name(server: EmbeddedRocketMQ, switch: str) -> None:
    with pytest.raises(ValueError, match=r"broker-x.*namesrv, broker-a"):
        getattr(server, switch)("broker-x")
    with pytest.raises(ValueError, match="broker-x"):
        server.delay(1.0, broker="broker-x")
    with pytest.raises(ValueError, match="broker-x"):
        server.statistics("broker-x")
