"""Offsets by queue in options: both forms, whole topics, and what is wrong with the others; what bounds make of them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from rmq_async.errors import ConfigError
from rmq_async.spark.options import read_options
from rmq_async.spark.planning import ends_of_options, starts_of_options
from rmq_async.spark.positions import Positions, Times, key_of, parse_positions, parse_queues, parse_times, queue_of
from rmq_protocol.message import MessageQueue

A0, A1, B0 = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1), MessageQueue("u", "broker-b", 0)


def test_a_key_and_its_queue() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    letters = "abcXYZ09_-%|"
    for _ in range(500):
        topic = "".join(dice.choices(letters, k=dice.randrange(1, 20)))
        broker = "".join(dice.choices(letters + "/. äß", k=dice.randrange(1, 20)))
        queue = MessageQueue(topic, broker, dice.randrange(1 << 31))
        assert queue_of(key_of(queue)) == queue


@pytest.mark.parametrize(
    "key", ["", "t", "t/b", "t/b/", "t//0", "/b/0", "t/b/-1", "t/b/x", "t/b/1.5", "t/b/٣", "t/b/" + "1" * 11]
)
def test_no_key(key: str) -> None:
    with pytest.raises(ValueError, match="a queue must be topic/broker/number"):
        queue_of(key)


def test_both_forms_and_whole_topics() -> None:
    flat = {"t/broker-a/0": 17, "t/broker-a/1": -2, "u/broker-b/0": -1}
    nested = {"t": {"broker-a": {"0": 17, "1": -2}}, "u": {"broker-b": {"0": -1}}}
    for data in (flat, nested, {"t": nested["t"], "u/broker-b/0": -1}):
        assert parse_positions("startingOffsets", data) == Positions({A0: 17, A1: -2, B0: -1})
    mixed = parse_positions("startingOffsets", {"t/broker-a/0": 5, "t": -1})
    assert (mixed.of(A0), mixed.of(A1), mixed.of(B0)) == (5, -1, None)
    times = parse_times("x", {"t": 1000, "t/broker-a/0": 5, "u": {"broker-b": {"0": 7}}})
    assert isinstance(times, Times)
    assert (times.of(A0), times.of(A1), times.of(B0)) == (5, 1000, 7)
    assert parse_queues("assign", {"t": {"b": [1, 0, 1]}}) == {"t": {"b": (1, 0)}}


KAFKAS = "t: a queue is named by its broker too, as each broker numbers its own; "


@pytest.mark.parametrize(
    ("parse", "data", "expected"),
    [
        (parse_positions, [], "must be a JSON object by queue, not '[]'"),
        (parse_positions, {}, "names no queue and no topic"),
        (parse_positions, {"t": 5}, "t: for all queues of a topic -2 (earliest) or -1 (latest) can be given, not 5"),
        (parse_positions, {"t": True}, "t: for all queues of a topic -2 (earliest) or -1 (latest) can be given, not True"),
        (parse_positions, {"t/b/0": -3}, "t/b/0 must be a whole number from -2 to 4611686018427387904, not -3"),
        (parse_positions, {"t/b/0": "5"}, "t/b/0 must be a whole number from -2 to 4611686018427387904, not '5'"),
        (parse_positions, {"t/b/0": True}, "t/b/0 must be a whole number from -2 to 4611686018427387904, not True"),
        (parse_positions, {"t/b": 5}, "a queue must be topic/broker/number, not 't/b'"),
        (parse_positions, {"t": {"b": 5}}, 't, b must be {"queue": offset}, not 5'),
        (parse_positions, {"t": {"b": {"x": 5}}}, "a queue must be topic/broker/number, not 't/b/x'"),
        (parse_positions, {"t t/b/0": 5}, "topic 't t' holds a character that is not allowed"),
        (parse_times, {"t": -1}, "t must be a whole number from 0 to 253402300799999, not -1"),
        (parse_times, {"t/b/0": 1 << 60}, "t/b/0 must be a whole number from 0 to 253402300799999, not 1152921504606846976"),
        (parse_times, {}, "names no queue and no topic"),
        (parse_queues, {}, "names no queue"),
        (parse_queues, {"t": ["x"]}, """t must be an object such as {"broker": [0, 1]}, not ['x']"""),
        (parse_queues, {"t": []}, 't must be an object such as {"broker": [0, 1]}, not []'),
        (parse_queues, {"t": [0, 7]}, KAFKAS + 'write {"t": {"broker-a": [0, 7]}} with the names of your brokers'),
        (parse_positions, {"t": {"0": 23}}, KAFKAS + 'write {"t/broker-a/0": 23} with the names of your brokers'),
        (parse_positions, {"t": {"0": -2, "1": 5}}, KAFKAS + 'write {"t/broker-a/0": -2, "t/broker-a/1": 5} with the names of'),
        (
            parse_positions,
            {"t": {str(n): n for n in range(9)}},
            KAFKAS + 'write {"t/broker-a/0": 0, "t/broker-a/1": 1, "t/broker-a/2": 2} w',
        ),
        (
            parse_times,
            {"t": {"4": 1700000000000}},
            KAFKAS + 'write {"t/broker-a/4": 1700000000000} with the names of your brok',
        ),
        (parse_queues, {"t": {"b": []}}, "t, b must be a list of queue numbers, not []"),
        (parse_queues, {"t": {"b": [-1]}}, "t, b must be a list of queue numbers, not [-1]"),
    ],
)
def test_what_is_wrong_is_reported(parse: Any, data: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("some", data)
    assert str(caught.value).startswith(
        f"option some {expected}" if expected[:2] in ("mu", "na") else f"option some: {expected}"
    )


class Asked:
    """A cluster where a message is stored each second, from second 0 on."""

    def __init__(self, now: Mapping[MessageQueue, int]) -> None:
        self.now = now

    def stored_at(self, moments: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        return {queue: min(-(-moment // 1000), self.now[queue]) for queue, moment in moments.items()}

    def latest(self, queues: tuple[MessageQueue, ...]) -> dict[MessageQueue, int]:
        return {queue: self.now[queue] for queue in queues}


EARLY = {"startingOffsets.default": "earliest"}
EARLIEST, LATEST = {A0: 5, A1: 6, B0: 0}, {A0: 50, A1: 60, B0: 7}


def starts(streaming: bool = False, **given: str) -> dict[MessageQueue, int]:
    options = read_options({"nameserver": "x:1", "subscribe": "t,u", **given}, streaming=streaming)
    return starts_of_options(options, Asked(LATEST), EARLIEST, LATEST)


def ends(now: Mapping[MessageQueue, int] = LATEST, **given: str) -> dict[MessageQueue, int]:
    options = read_options({"nameserver": "x:1", "subscribe": "t,u", **given}, streaming=False)
    return ends_of_options(options, Asked(now), EARLIEST, LATEST)


class TestBounds:
    def test_words_and_defaults(self) -> None:
        assert starts() == starts(streaming=True, startingOffsets="earliest") == EARLIEST
        assert starts(streaming=True) == starts(startingOffsets="LATEST") == ends() == ends(endingOffsets="latest") == LATEST

    def test_offsets_by_queue(self) -> None:
        given = json.dumps({"t/broker-a/0": 33, "t/broker-a/1": -1})
        assert (
            starts(startingOffsets=given, **EARLY)
            == starts(streaming=True, startingOffsets=given, **EARLY)
            == {
                A0: 33,
                A1: 60,
                B0: 0,
            }
        )
        assert starts(startingOffsets=given, **{"startingOffsets.default": "latest"}) == {A0: 33, A1: 60, B0: 7}
        assert ends(endingOffsets=given) == {A0: 33, A1: 60, B0: 7}
        assert starts(startingOffsets='{"t": -1, "t/broker-a/0": -2}', **EARLY) == {A0: 5, A1: 60, B0: 0}

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (
                {"startingOffsets": '{"t": -1}'},
                "option startingOffsets does not name u/broker-b/0; name it, or set startingOffsets.default=",
            ),
            (
                {"startingOffsetsByTimestamp": '{"u": 1, "t/broker-a/1": 1}', "startingOffsets": "latest"},
                "option startingOffsetsByTimestamp does not name t/broker-a/0; name it, or set startingOffsets.default=",
            ),
            (
                {"startingOffsets": '{"t/broker-a/0": 1}'},
                "option startingOffsets does not name t/broker-a/1, u/broker-b/0; name them, or set "
                "startingOffsets.default=earliest or latest for all queues without a name here",
            ),
        ],
    )
    @pytest.mark.parametrize("streaming", [False, True])
    def test_a_queue_that_is_not_named(self, given: dict[str, str], expected: str, streaming: bool) -> None:
        with pytest.raises(ConfigError, match=expected):
            starts(streaming=streaming, **given)

    def test_moments_win_over_offsets_and_one_for_all_over_both(self) -> None:
        one = {"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"t": 20000, "t/broker-a/1": 30500}'}
        assert starts(**one, **EARLY) == {A0: 20, A1: 31, B0: 0}
        assert starts(**one, startingTimestamp="6000") == {A0: 6, A1: 6, B0: 6}
        assert ends(endingTimestamp="6000", endingOffsetsByTimestamp='{"t": 1}') == {A0: 6, A1: 6, B0: 6}

    def test_nothing_that_young(self) -> None:
        with pytest.raises(ConfigError, match="u/broker-b/0 has no message stored at timestamp 7000 or later; starting"):
            starts(startingTimestamp="7000")
        with pytest.raises(ConfigError, match="t/broker-a/1 has no message stored at timestamp 70000 or later; starting"):
            starts(startingOffsetsByTimestamp='{"t/broker-a/1": 70000}', **EARLY)
        late = starts(startingTimestamp="253402300799999", startingOffsetsByTimestampStrategy="latest")
        assert late == LATEST

    def test_an_end_in_the_future_is_what_is_there_when_it_is_planned(self) -> None:
        assert ends({queue: offset + 3 for queue, offset in LATEST.items()}, endingTimestamp="253402300799999") == LATEST

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (
                {"startingOffsets": '{"t/broker-c/0": 1}'} | EARLY,
                "option startingOffsets names t/broker-c/0, which is not read; name only queues that are read: t/broker-a/0",
            ),
            ({"startingOffsets": '{"v": -1, "t": -1, "u": -1}'}, "option startingOffsets names v, which is not read"),
            (
                {"startingOffsetsByTimestamp": '{"v": 1}'} | EARLY,
                "option startingOffsetsByTimestamp names v, which is not read",
            ),
        ],
    )
    def test_a_queue_that_is_not_read(self, given: dict[str, str], expected: str) -> None:
        with pytest.raises(ConfigError, match=expected):
            starts(**given)
