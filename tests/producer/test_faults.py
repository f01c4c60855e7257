"""What is held against brokers and for how long, with a clock of the test's own; see ``rmq_async/producer/faults.py``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import FaultTable, errors
from rmq_async.broker_answers import broker_error
from rmq_async.producer.routing.avoidance import MOST_ITEMS
from rmq_async.producer.routing.fault_table import Blame, GivenUpError, LatencyTable, blame
from rmq_protocol.constants import ResponseCode

from .support import is_available

V5, V4 = FaultTable.V5, FaultTable.V4
T = 1000.0
"""Where the clock stands when a test begins."""


def failed(faults: LatencyTable, broker: str, now: float = T, *, reachable: bool = False, latency: float = 1.0) -> None:
    faults.update(broker, latency, isolated=True, reachable=reachable, now=now)


def succeeded(faults: LatencyTable, broker: str, now: float, latency: float = 0.001) -> None:
    faults.update(broker, latency, isolated=False, reachable=True, now=now)


def best(faults: LatencyTable, brokers: str, now: float) -> str:
    return "".join(sorted(faults.best(frozenset(brokers), now)))


def test_no_broker_is_suspected_at_first() -> None:
    faults = LatencyTable(V5)
    brokers = frozenset("ab")
    assert faults.best(brokers, T) is brokers
    assert all([is_available(faults, "a", T), faults.reachable("a", T), faults.usable("a", T)])
    succeeded(faults, "a", T)
    assert len(faults.items) == 0


@pytest.mark.parametrize(
    ("table", "seconds"), [(V5, 10.0), (V4, 600.0), (FaultTable((0.1, 5.0), (1.0, 7.0), isolation=5.0), 7.0)]
)
def test_a_failed_broker_is_left_alone_and_that_ends_by_itself(table: FaultTable, seconds: float) -> None:
    faults = LatencyTable(table)
    failed(faults, "a")
    assert not is_available(faults, "a", T + seconds - 0.01)
    assert not faults.reachable("a", T + seconds - 0.01)
    assert is_available(faults, "a", T + seconds)
    assert faults.reachable("a", T + seconds)
    assert best(faults, "ab", T + seconds - 0.01) == "b"
    assert best(faults, "ab", T + seconds) == "ab"


@pytest.mark.parametrize(
    "values", [None, "", (), ("",), (-1.0,), (float("nan"),), (1e9,), pytest.param((10**5000,), id="huge")]
)
def test_a_table_of_what_are_no_seconds_is_refused(values: Any) -> None:
    wanted = "must be a sequence of one or more numbers of seconds, from 0 to below 1e9, not "
    with pytest.raises(errors.ConfigError, match=f"latencies {wanted}"):
        FaultTable(values, (1.0,))
    with pytest.raises(errors.ConfigError, match=f"durations {wanted}"):
        FaultTable((1.0,), values)


@pytest.mark.parametrize(("latency", "seconds"), [(0.549, 0.0), (0.55, 2.0), (1.8, 5.0), (3.0, 6.0), (5.0, 10.0), (20.0, 30.0)])
def test_a_slow_broker_is_left_alone_for_as_long_as_the_table_says(latency: float, seconds: float) -> None:
    faults = LatencyTable(V5)
    succeeded(faults, "a", T, latency)
    assert len(faults.items) == (seconds > 0)
    assert faults.reachable("a", T)
    assert is_available(faults, "a", T + seconds)
    assert seconds == 0 or not is_available(faults, "a", T + seconds - 0.01)


def test_a_shorter_time_does_not_cut_a_longer_one_short() -> None:
    faults = LatencyTable(V5)
    failed(faults, "a")
    succeeded(faults, "a", T + 1, latency=0.6)
    assert not is_available(faults, "a", T + 9.9)
    failed(faults, "a", T + 5)
    assert not is_available(faults, "a", T + 14.9)
    assert is_available(faults, "a", T + 15)


def test_a_quick_success_that_began_after_the_fault_clears_the_broker() -> None:
    faults = LatencyTable(V5)
    failed(faults, "a")
    succeeded(faults, "a", T + 0.1, latency=0.2)  # it was under way when the other one failed
    assert not is_available(faults, "a", T + 0.1)
    assert faults.reachable("a", T + 0.1)
    succeeded(faults, "a", T + 0.2, latency=0.1)
    assert len(faults.items) == 0
    assert faults.usable("a", T + 0.2)


def test_a_broker_that_answers_is_preferred_to_one_that_does_not_while_both_are_left_alone() -> None:
    faults = LatencyTable(V5)
    failed(faults, "a", reachable=False)
    failed(faults, "b", reachable=True)
    assert best(faults, "ab", T + 1) == "b"
    assert best(faults, "a", T + 1) == "a"
    failed(faults, "b", reachable=False)
    assert best(faults, "ab", T + 1) == "ab"
    assert best(faults, "", T + 1) == ""


def test_after_its_time_a_broker_gets_one_attempt_until_that_succeeds() -> None:
    under_way: set[str] = set()
    faults = LatencyTable(V5, under_way.__contains__)
    failed(faults, "a")
    assert best(faults, "ab", T + 10) == "ab"
    under_way.update("ab")
    assert best(faults, "ab", T + 10.001) == "b"
    assert is_available(faults, "a", T + 10.001)
    under_way.remove("a")
    assert best(faults, "ab", T + 10.002) == "ab"
    under_way.add("a")
    succeeded(faults, "a", T + 10.01)
    assert best(faults, "ab", T + 10.02) == "ab"


def test_an_attempt_that_stays_unanswered_speaks_against_its_broker_before_it_fails() -> None:
    faults = LatencyTable(V5)
    faults.late = frozenset("a")
    assert best(faults, "ab", T) == "b"
    assert best(faults, "a", T) == "a"
    faults.late = frozenset("ab")
    assert best(faults, "ab", T) == "ab"  # nothing to choose between
    assert not faults.items


def test_any_change_counts_as_a_new_version() -> None:
    faults = LatencyTable(V5)
    versions = [faults.version]
    succeeded(faults, "a", T)
    assert faults.version == versions[0]  # nothing new
    for step in (
        lambda: failed(faults, "a"),
        lambda: succeeded(faults, "a", T + 1),
        lambda: succeeded(faults, "a", T + 2, latency=0.6),
        lambda: faults.proved("a"),
    ):
        step()
        assert faults.version > versions[-1]
        versions.append(faults.version)


def test_a_table_that_never_isolates() -> None:
    faults = LatencyTable(FaultTable((0.1,), (0.0,)), lambda broker: True)
    failed(faults, "a")
    assert best(faults, "ab", T + 1000) == "b"  # on trial, with an attempt under way
    assert faults.patience == float("inf")


def test_with_pick_one_at_least_the_better_half_is_left_to_choose_from() -> None:
    faults = LatencyTable(V4)
    failed(faults, "a", T, latency=3.0)
    failed(faults, "b", T, latency=1.0)
    assert best(faults, "abc", T + 1) == "c"
    failed(faults, "c", T, latency=2.0)
    failed(faults, "d", T + 1, latency=2.0)
    assert best(faults, "abcd", T + 2) == "bc"
    assert best(faults, "ab", T + 2) == "b"
    assert best(faults, "acd", T + 2) == "c"
    assert best(faults, "a", T + 2) == "a"


def test_outcomes_of_attempts() -> None:
    faults = LatencyTable(V5)
    faults.succeeded("a", 0.5, T)
    faults.failed("b", errors.MessageIllegalError("too large"), 0.6, T)
    faults.failed("c", GivenUpError("late"), 0.6, T)
    faults.failed("d", errors.SystemBusyError("busy"), 0.001, T)
    faults.failed("e", errors.ConnectError("refused"), 0.001, T)
    assert [is_available(faults, broker, T + 1.9) for broker in "abcde"] == [True, True, False, False, False]
    assert [is_available(faults, broker, T + 2) for broker in "abcde"] == [True, True, True, False, False]
    assert [faults.reachable(broker, T + 1) for broker in "abcde"] == [True, True, True, True, False]


def test_brokers_without_queues_are_forgotten() -> None:
    faults = LatencyTable(V5)
    for broker in "abc":
        failed(faults, broker)
    faults.keep({"a"}.__contains__)
    assert best(faults, "abc", T) == "bc"
    assert set(faults.items) == {"a"}


def test_the_table_is_bounded() -> None:
    faults = LatencyTable(V5)
    for number in range(MOST_ITEMS + 10):
        failed(faults, f"b{number}")
    assert len(faults.items) == MOST_ITEMS
    assert is_available(faults, "b9", T)
    assert not is_available(faults, "b10", T)


def test_the_detector_asks_those_that_did_not_answer() -> None:
    faults = LatencyTable(V5)
    failed(faults, "a", reachable=False)
    failed(faults, "b", reachable=True)
    succeeded(faults, "c", T, latency=1.0)
    assert faults.silent() == ("a",)
    faults.proved("a")
    assert faults.silent() == ()
    assert best(faults, "abc", T + 1) == "a"


@pytest.mark.parametrize(
    ("error", "elapsed", "expected"),
    [
        (errors.ConnectError("refused"), 0.001, Blame.SILENT),
        (errors.ConnectionLostError("reset"), 0.001, Blame.SILENT),
        (errors.RequestTimeoutError("late"), 1.0, Blame.SILENT),
        (errors.RequestTimeoutError("late"), 0.05, Blame.SILENT),
        (errors.RequestTimeoutError("the caller had no time"), 0.01, Blame.NONE),
        (asyncio.CancelledError(), 0.5, Blame.NONE),
        (asyncio.CancelledError(), 0.6, Blame.SLOW),
        (GivenUpError("another attempt was stored"), 0.5, Blame.NONE),
        (GivenUpError("another attempt was stored"), 0.6, Blame.SLOW),
        (broker_error(ResponseCode.SYSTEM_BUSY, "no"), 0.001, Blame.ANSWERED),
        (broker_error(ResponseCode.SYSTEM_ERROR, "no"), 0.001, Blame.ANSWERED),
        (broker_error(ResponseCode.SERVICE_NOT_AVAILABLE, "no"), 0.001, Blame.ANSWERED),
        (broker_error(ResponseCode.NO_PERMISSION, "no"), 0.001, Blame.ANSWERED),
        (broker_error(ResponseCode.FLOW_CONTROL, "no"), 0.001, Blame.ANSWERED),
        (broker_error(ResponseCode.GO_AWAY, "no"), 0.001, Blame.ANSWERED),
        (broker_error(ResponseCode.MESSAGE_ILLEGAL, "no"), 0.001, Blame.NONE),
        (broker_error(ResponseCode.NO_PERMISSION, "check signature failed."), 0.001, Blame.NONE),
        (broker_error(ResponseCode.NO_PERMISSION, "User:bob has no permission to access Topic:T"), 0.001, Blame.NONE),
        (errors.RemoteProtocolError("no msgId"), 0.001, Blame.ANSWERED),
        (errors.BackpressureError("full"), 3.0, Blame.NONE),
        (errors.ClientStateError("stopping"), 3.0, Blame.NONE),
        (errors.SelectorError("no"), 3.0, Blame.NONE),
        (errors.ForbiddenError("no"), 3.0, Blame.NONE),
        (errors.InvalidMessageError("no"), 3.0, Blame.NONE),
        (KeyError("a bug"), 3.0, Blame.NONE),
    ],
)
def test_what_an_error_says_about_a_broker(error: BaseException, elapsed: float, expected: Blame) -> None:
    assert blame(error, elapsed, V5) is expected
