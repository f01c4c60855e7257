"""Delay levels, on a clock that the test moves."""

from __future__ import annotations

import pytest

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_async.embedded.schedule import DELAY_LEVELS, SCHEDULE_TOPIC

from ...support.fakes import RawClient
from ..inside import START, WatchedClock
from .support import bodies, send, sent

# ------------------------------------------------------------------------------------------------------------------- levels


async def test_each_level_delivers_when_its_time_has_come_and_not_before(
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock
) -> None:
    for level in range(18, 0, -1):
        answer = await sent(broker, b"%d" % level, DELAY=level)
        assert (answer["queueId"], answer["queueOffset"], "recallHandle" in answer) == ("0", "0", False)
    for level, seconds in enumerate(DELAY_LEVELS, 1):
        await clock.advance(seconds - 0.001 - (clock.now_ms() - START) / 1000)
        assert len(bodies(server)) == level - 1
        await clock.advance(0.001)
        assert bodies(server)[-1] == b"%d" % level
    assert [message.store_time_ms for message in server.messages("T")] == [START + 1000 * each for each in DELAY_LEVELS]


async def test_a_delayed_message_comes_as_it_was_sent(server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock) -> None:
    properties = {
        "UNIQ_KEY": "u",
        "KEYS": "k1 k2",
        "TAGS": "A",
        "WAIT": "true",
        "mine": "x",
        "DELAY": "2",
        "REAL_TOPIC": "forged",
    }
    await broker.send("T", b"body", queue=3, properties=properties, h="-9", j="4")
    (waits,) = server.messages(SCHEDULE_TOPIC)
    assert (waits.queue.queue_id, waits.properties["REAL_TOPIC"], waits.properties["REAL_QID"]) == (1, "T", "3")
    await clock.advance(5)
    (message,) = server.messages("T")
    added = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert message.properties == {**properties, **added, "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert (message.body, message.flag, message.reconsume_times, message.queue.queue_id) == (b"body", -9, 4, 3)
    assert (message.born_time_ms, message.born_host) == (waits.born_time_ms, broker.local)


async def test_levels_above_the_last_are_the_last(server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock) -> None:
    await sent(broker, b"a", DELAY=99)
    await sent(broker, b"b", DELAY=2**31 - 1)
    await clock.advance(7199.999)
    assert bodies(server) == []
    await clock.advance(0.001)
    assert bodies(server) == [b"a", b"b"]
    assert {message.properties["DELAY"] for message in server.messages("T")} == {"18"}


@pytest.mark.parametrize("level", ["0", "-1", "-2147483648", "+0"])
async def test_levels_below_1_do_not_wait(server: EmbeddedRocketMQ, broker: RawClient, level: str) -> None:
    await sent(broker, b"a", DELAY=level)
    assert [message.properties["DELAY"] for message in server.messages("T")] == [level]


@pytest.mark.parametrize("level", ["x", "1.5", "2147483648", "-2147483649", "1" + "0" * 30, " 1", "٣"])
async def test_a_level_that_is_no_number_is_1_and_stores_nothing(
    server: EmbeddedRocketMQ, broker: RawClient, level: str
) -> None:
    response = await send(broker, b"a", DELAY=level)
    assert (response.code, response.remark) == (1, f'java.lang.NumberFormatException: For input string: "{level}"')
    assert bodies(server) == bodies(server, SCHEDULE_TOPIC) == []


async def test_levels_are_those_given_to_the_server(clock: WatchedClock) -> None:
    async with EmbeddedRocketMQ(clock=clock, delay_levels=(0, 0.25)) as server, RawClient(server.brokers["broker-a"]) as broker:
        await sent(broker, b"now", DELAY=1)
        await sent(broker, b"later", DELAY=9)
        assert bodies(server) == [b"now"]
        await clock.advance(0.25)
        assert bodies(server) == [b"now", b"later"]


async def test_levels_above_the_highest_count_as_it() -> None:
    """And there may be more than the 18 of a stock broker."""
    clock = ManualClock()
    levels = [1000.0] * 18 + [1.0, 2.0]
    async with EmbeddedRocketMQ(clock=clock, delay_levels=levels) as server, Producer("g", namesrv=server.namesrv) as sender:
        for level in (18, 19, 20, 21, 2**31 - 1):
            await sender.send(Message("T", b"%d" % level, delay_level=level))
        await clock.advance(1.5)
        assert [message.body for message in server.messages("T")] == [b"19"]
        await clock.advance(1.0)
        assert [(each.body, each.delay_level) for each in server.messages("T")] == [
            (b"19", 19), (b"20", 20), (b"21", 20), (b"2147483647", 20)
        ]  # fmt: skip
