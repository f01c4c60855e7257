"""What a send call does next, as pure decisions; see ``rmq_async/producer/policy.py``."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_async import errors
from rmq_async.broker_answers import broker_error
from rmq_async.producer.calls.attempts import FIRST_KEPT, NEWEST_KEPT, Attempts
from rmq_async.producer.calls.retry_policy import (
    Brokers,
    Rules,
    Step,
    Verdict,
    attempt_cap,
    goes_on_after,
    is_retriable,
    next_step,
    pause_before,
)
from rmq_async.producer.config import RETRY_CODES
from rmq_protocol.constants import ResponseCode

from .support import TIMED_OUT as TIMEOUT
from .support import Made

OOPS = broker_error(1, "oops")
AWAY = broker_error(1500, "please go away")
LOST = errors.ConnectionLostError("lost", maybe_stored=True)
UNSENT = errors.ConnectionLostError("lost before it was written")
UNWRITTEN = errors.RequestTimeoutError("late, and not even written")
FORBIDDEN = errors.ConnectError("the host is not allowed", permanent=True)
REFUSED = errors.ConnectError("refused")
BUSY = broker_error(ResponseCode.SYSTEM_BUSY, "busy")
GONE = broker_error(29, "request queueId[7] is illegal, TopicConfig [topicName=T, readQueueNums=4, writeQueueNums=2]")
ILLEGAL = broker_error(ResponseCode.MESSAGE_ILLEGAL, "too large")


def silent(broker: str) -> Made:
    """Given up, and its answer may still come."""
    return Made(broker, TIMEOUT, True)


def decide(
    *made: Made,
    brokers: str = "abc",
    avoided: str = "",
    down: str = "",
    resting: str = "",
    remaining: float = 3.0,
    **rules: Any,
) -> Step:
    known = Brokers(frozenset(brokers), avoided, down, resting)
    return next_step(Attempts(*made), known, Rules(**({"retries": 2, "retry_codes": RETRY_CODES} | rules)), remaining)


def tries(brokers: str, cap: float | None = None) -> Step:
    return Step(Verdict.TRY, frozenset(brokers), cap)


def again(brokers: str) -> Step:
    """All have been tried."""
    return Step(Verdict.TRY, frozenset(brokers), repeats=True)


def reaches(brokers: str) -> Step:
    """None can be connected to."""
    return Step(Verdict.REACH, frozenset(brokers))


WAIT, FAIL = Step(Verdict.WAIT), Step(Verdict.FAIL)


@pytest.mark.parametrize(
    ("made", "options", "expected"),
    [
        # the first attempt: capped while another broker is left to try
        ((), {}, tries("abc", 1.0)),
        ((), {"brokers": "ab"}, tries("ab", 1.0)),
        ((), {"brokers": "a"}, tries("a")),
        ((), {"brokers": "a", "attempt_timeout": 0.5}, tries("a")),
        ((), {"retries": 0}, tries("abc", 3.0)),
        ((), {"brokers": ""}, FAIL),
        ((), {"remaining": 0.0}, FAIL),
        ((), {"remaining": -1.0}, FAIL),
        # a budget that is all but over is not worth an attempt, but worth waiting for the answers that may come
        ((Made("a", REFUSED),), {"remaining": 0.001}, FAIL),
        ((silent("a"),), {"remaining": 0.001}, WAIT),
        # brokers already tried are left out while others are left; the last one gets the whole rest
        ((silent("a"),), {"remaining": 2.0}, tries("bc", 1.0)),
        ((silent("a"), silent("b")), {"remaining": 1.0}, tries("c")),
        ((silent("a"),), {"brokers": "ab", "remaining": 2.0}, tries("b")),
        ((silent("b"), silent("a")), {"remaining": 1.0}, tries("c")),
        ((Made("a", OOPS),), {"remaining": 3.0}, tries("bc", 1.5)),
        # all tried: any of them that has answered or is known to have nothing, but the newest one's only where it is alone
        ((Made("a", OOPS), Made("b", OOPS)), {"brokers": "ab"}, again("a")),
        ((Made("a", OOPS), Made("b", OOPS), Made("a", OOPS)), {"brokers": "ab", "retries": 4}, again("b")),
        ((Made("a", OOPS), Made("b", BUSY), Made("c", OOPS)), {"retries": 4}, again("ab")),
        ((Made("a", OOPS), Made("b", OOPS)), {"brokers": "b"}, again("b")),
        ((Made("a", BUSY),), {"brokers": "a"}, again("a")),
        ((Made("a", OOPS), Made("a", OOPS)), {"brokers": "a"}, again("a")),
        # what surely reached no broker is not counted
        ((Made("a", REFUSED),), {"remaining": 3.0}, tries("bc", 1.0)),
        ((Made("a", REFUSED), Made("b", REFUSED)), {"brokers": "ab", "retries": 0}, again("a")),
        ((Made("a", REFUSED),) * 5, {"brokers": "a"}, again("a")),
        ((Made("a", UNSENT),) * 5, {"brokers": "a", "retries": 0}, again("a")),
        ((Made("a", AWAY),) * 5, {"brokers": "a", "retries": 0}, again("a")),
        ((Made("a", UNWRITTEN),) * 5, {"brokers": "a", "retries": 0}, again("a")),
        ((Made("a", LOST),) * 3, {"brokers": "a"}, FAIL),
        ((*[Made("a", REFUSED)] * 40, *[Made("a", OOPS)] * 2), {"brokers": "a"}, again("a")),
        ((*[Made("a", REFUSED)] * 40, *[Made("a", OOPS)] * 3), {"brokers": "a"}, FAIL),
        ((*[Made("a", OOPS)] * 3, *[Made("a", REFUSED)] * 40), {"brokers": "a", "retries": 3}, again("a")),
        ((*[Made("a", OOPS)] * 3, *[Made("a", REFUSED)] * 40), {"brokers": "a", "retries": 2}, FAIL),
        ((Made("a", FORBIDDEN),) * 2, {"brokers": "a", "retries": 2}, again("a")),
        ((Made("a", FORBIDDEN),) * 3, {"brokers": "a", "retries": 2}, FAIL),
        # brokers that cannot be connected to are passed over, and waited for where there are no others
        ((Made("a", OOPS), Made("b", REFUSED)), {"brokers": "ab", "down": "b", "resting": "b"}, again("a")),
        ((Made("b", REFUSED), Made("a", OOPS)), {"brokers": "ab", "down": "b", "resting": "b"}, again("a")),
        ((Made("b", REFUSED), Made("a", OOPS)), {"brokers": "ab", "down": "b"}, again("b")),
        ((Made("a", REFUSED), Made("b", REFUSED)), {"brokers": "ab", "down": "ab", "resting": "b"}, reaches("ab")),
        ((Made("a", REFUSED),), {"brokers": "a", "down": "a"}, reaches("a")),
        ((Made("a", REFUSED),), {"brokers": "ab", "down": "ab", "resting": "ab"}, tries("b")),
        ((silent("a"), Made("b", REFUSED)), {"brokers": "ab", "down": "b"}, reaches("b")),
        ((), {"brokers": "a", "down": "a", "resting": "a"}, tries("a")),
        # with hardly any time left a broker that was tried is not tried again
        ((Made("a", REFUSED),), {"brokers": "a", "remaining": 0.019}, FAIL),
        ((Made("a", REFUSED),), {"brokers": "a", "down": "a", "remaining": 0.019}, FAIL),
        ((silent("a"), Made("b", OOPS)), {"brokers": "ab", "remaining": 0.019}, WAIT),
        ((Made("a", OOPS, elapsed=0.2),), {"brokers": "a", "remaining": 0.39}, FAIL),
        ((Made("a", OOPS, elapsed=0.2),), {"brokers": "a", "remaining": 0.41}, again("a")),
        ((Made("a", REFUSED, elapsed=0.2),), {"brokers": "a", "remaining": 0.05}, again("a")),
        # a broker that has not answered is not sent to again
        ((silent("a"), Made("b", BUSY)), {"brokers": "ab"}, again("b")),
        ((silent("a"),), {"brokers": "a"}, WAIT),
        ((silent("a"), silent("b")), {"brokers": "ab"}, WAIT),
        ((Made("a", None, True),), {"brokers": "a"}, WAIT),
        # it closed meanwhile: the answer cannot come any more
        ((Made("a"),), {"brokers": "a"}, again("a")),
        # no attempts left: wait for an answer that may come, else fail
        ((silent("a"), Made("b", BUSY), Made("c", BUSY)), {}, WAIT),
        ((Made("a", BUSY), Made("b", BUSY), Made("c", BUSY)), {}, FAIL),
        ((Made("a", BUSY),), {"retries": 0}, FAIL),
        ((silent("a"),), {"retries": 0}, WAIT),
        ((silent("a"), silent("b"), silent("c")), {"remaining": 0.0}, FAIL),
        # the broker said that trying again is no use
        ((Made("a", ILLEGAL),), {}, FAIL),
        ((silent("a"), Made("b", ILLEGAL)), {}, FAIL),
        ((Made("a", BUSY),), {"retry_codes": {1}}, FAIL),
        ((Made("a", ILLEGAL),), {"retry_codes": {13}}, tries("bc", 1.5)),
        # a queue that its broker does not have is none of the attempts that are counted
        ((Made("a", GONE),), {"retries": 0}, tries("bc", 3.0)),
        ((Made("a", GONE), Made("b", GONE), Made("c", GONE)), {"retries": 0}, again("ab")),
        ((Made("a", GONE), Made("b", BUSY)), {"retries": 0}, FAIL),
        ((Made("a", GONE),), {"retry_codes": ()}, tries("bc", 1.0)),
        # brokers that are left alone do not count as left to try, unless there are no others
        ((), {"avoided": "b"}, tries("abc", 1.0)),
        ((), {"avoided": "bc"}, tries("abc")),
        ((), {"avoided": "abc"}, tries("abc", 1.0)),
        ((), {"brokers": "ab", "avoided": "b"}, tries("ab")),
        ((silent("a"),), {"remaining": 2.0, "avoided": "ab"}, tries("bc")),
        ((silent("a"),), {"remaining": 2.0, "avoided": "abc"}, tries("bc", 1.0)),
        ((silent("a"), silent("b")), {"remaining": 1.0, "avoided": "c"}, tries("c")),
        # a broker that left the route meanwhile
        ((silent("x"),), {"brokers": "a"}, tries("a")),
    ],
)
def test_next_step(made: tuple[Made, ...], options: dict[str, Any], expected: Step) -> None:
    step = decide(*made, **options)
    assert (step.verdict, step.brokers, step.repeats) == (expected.verdict, expected.brokers, expected.repeats)
    assert step.cap == pytest.approx(expected.cap) if expected.cap is not None else step.cap is None


@pytest.mark.parametrize(
    ("remaining", "attempts_left", "attempt_timeout", "expected"),
    [
        (3.0, 3, None, 1.0),
        (3.0, 1, None, 3.0),
        (2.0, 2, None, 1.0),
        (0.5, 3, None, 0.2),
        (0.15, 3, None, 0.15),
        (3.0, 1000, None, 0.2),
        (3.0, 0, None, 3.0),
        (3.0, 3, 0.05, 0.05),
        (3.0, 3, 2.5, 2.5),
        (1.0, 3, 2.5, 1.0),
    ],
)
def test_attempt_cap(remaining: float, attempts_left: int, attempt_timeout: float | None, expected: float) -> None:
    assert attempt_cap(remaining, attempts_left, attempt_timeout) == pytest.approx(expected)


def test_the_own_cap_of_attempts_replaces_the_share() -> None:
    assert decide(attempt_timeout=0.1).cap == pytest.approx(0.1)
    assert decide(silent("a"), attempt_timeout=0.1).cap == pytest.approx(0.1)
    assert decide(silent("a"), silent("b"), attempt_timeout=0.1).cap is None


def test_the_configured_codes_decide_about_answers() -> None:
    answers = {int(code): broker_error(code, "no") for code in ResponseCode}
    assert {code for code, error in answers.items() if is_retriable(error, RETRY_CODES)} == {1, 2, 14, 16, 17, 204, 205, 1500}
    assert [code for code, error in answers.items() if not is_retriable(error, frozenset({code}))] == []
    assert [code for code, error in answers.items() if is_retriable(error, frozenset())] == []


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (16, "check signature failed.", errors.AuthenticationError),
        (16, "User:X is not found.", errors.AuthenticationError),
        (16, "User:X is disabled.", errors.AuthenticationError),
        (16, "username cannot be null.", errors.AuthenticationError),
        (16, "User:bob has no permission to access Topic:T from 127.0.0.1, no matched policies.", errors.PermissionDeniedError),
        (1, "org.apache.rocketmq.acl.common.AclException: Check signature failed", errors.AuthenticationError),
    ],
)
def test_refused_credentials_are_never_tried_again(code: int, remark: str, kind: type[errors.BrokerError]) -> None:
    error = broker_error(code, remark)
    assert type(error) is kind
    assert error.code == code
    assert not is_retriable(error, RETRY_CODES)


def test_code_16_without_such_a_remark_is_tried_elsewhere() -> None:
    error = broker_error(16, "the broker[127.0.0.1] sending message is forbidden")
    assert type(error) is errors.NoPermissionError
    assert is_retriable(error, RETRY_CODES)


@pytest.mark.parametrize("code", [29, 1])
def test_broker_error_names_a_queue_that_is_gone(code: int) -> None:
    error = broker_error(code, str(GONE.args[0]).partition("INVALID_PARAMETER: ")[2].rstrip(")"), broker="a")
    assert isinstance(error, errors.QueueNotExistError)
    assert (error.code, error.queue_id, error.queues) == (code, 7, 4)
    assert "topic T has no queue 7 on a: it has 4 there" in str(error)
    assert is_retriable(error, frozenset())
    assert type(broker_error(29, "any other")) is errors.InvalidParameterError


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (errors.ConnectError("refused"), True),
        (errors.ConnectionLostError("lost"), True),
        (errors.RequestTimeoutError("late"), True),
        (errors.BrokerNotFoundError("gone"), True),
        (errors.TopicNotFoundError("no route"), False),
        (errors.NameServerError("none"), False),
        (errors.BackpressureError("full"), False),
        (errors.ClientStateError("stopped"), False),
        (errors.RemoteProtocolError("garbage"), False),
        (errors.InvalidMessageError("bad"), False),
        (errors.SelectorError("bad"), False),
        (ValueError("not ours"), False),
    ],
)
def test_for_other_errors_the_class_decides(error: Exception, retriable: bool) -> None:
    assert is_retriable(error, RETRY_CODES) is retriable
    assert is_retriable(error, frozenset()) is retriable


@pytest.mark.parametrize(
    ("error", "retries", "expected"),
    [
        (OOPS, 0, False),
        (OOPS, 1, True),
        (ILLEGAL, 5, False),
        (REFUSED, 0, True),
        (UNSENT, 0, True),
        (AWAY, 0, True),
        (LOST, 0, False),
        (FORBIDDEN, 0, False),
        (GONE, 0, True),
    ],
)
def test_first_attempt_that_reached_no_broker_is_not_the_last(error: Exception, retries: int, expected: bool) -> None:
    assert goes_on_after(error, Rules(retries, RETRY_CODES)) is expected


def pause(*made: Made, remaining: float = 3.0, jitter: float = 1.0, repeats: bool = False, since: float = 0.0) -> float:
    return pause_before(Attempts(*made), Step(Verdict.TRY, repeats=repeats), remaining, jitter, since)


def test_only_a_broker_that_is_too_busy_makes_an_untried_one_wait() -> None:
    assert pause() == 0
    assert pause(silent("a")) == 0
    assert pause(Made("a", REFUSED)) == 0
    assert pause(Made("a", OOPS)) == 0
    assert pause(Made("a", BUSY), Made("b", REFUSED)) == 0
    assert pause(Made("a", BUSY)) == pytest.approx(0.05)
    assert pause(Made("a", broker_error(215, "flow"))) == pytest.approx(0.05)


@pytest.mark.parametrize("error", [BUSY, OOPS, REFUSED, LOST])
def test_pauses_double_up_to_a_second_and_jitter_halves_them_at_most(error: Exception) -> None:
    pauses = [pause(*[Made("a", error)] * count, remaining=1000.0, repeats=True) for count in range(1, 40)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8] + [1.0] * 34)
    halved = [pause(*[Made("a", error)] * 3, remaining=1000.0, repeats=True, jitter=jitter) for jitter in (0.0, 0.5)]
    assert halved == pytest.approx([0.1, 0.15])


def test_pauses_begin_when_every_broker_has_been_tried() -> None:
    made = [Made(broker, OOPS) for broker in "abcab"]
    assert [pause(*made[:count], repeats=count >= 3) for count in range(6)] == pytest.approx([0, 0, 0, 0.05, 0.1, 0.2])


def test_a_pause_takes_half_of_the_budget_at_most() -> None:
    assert pause(Made("a", BUSY), remaining=0.04) == pytest.approx(0.02)
    assert pause(Made("a", BUSY), remaining=0.0) == 0
    assert pause(*[Made("a", OOPS)] * 9, remaining=1.5, repeats=True) == pytest.approx(0.75)


def test_time_since_the_newest_attempt_counts_as_pause() -> None:
    assert pause(Made("a", REFUSED), repeats=True, since=0.02) == pytest.approx(0.03)
    assert pause(Made("a", REFUSED), repeats=True, since=7.0) == 0


def test_a_server_that_sends_away_once_is_asked_again_at_once() -> None:
    assert pause(Made("a", AWAY), repeats=True) == 0
    assert pause(Made("a", AWAY), Made("a", AWAY), repeats=True) == pytest.approx(0.1)
    assert pause(Made("a", OOPS), Made("b", AWAY), repeats=True) == 0


def test_of_many_attempts_the_first_and_the_newest_are_kept() -> None:
    attempts = Attempts()
    answered = silent("b")
    attempts.add(Made("a", LOST, maybe_stored=True))
    for number in range(1000):
        attempts.add(Made("a", [OOPS, REFUSED][number % 2], elapsed=number))
        if number == 500:
            attempts.add(answered)
    kept = list(attempts)
    assert (attempts.made, attempts.counted, attempts.repeated) == (1002, 502, 1000)
    assert (attempts.tried, attempts.unanswered, attempts.maybe_stored) == ({"a", "b"}, {"b"}, True)
    assert answered in kept, "its answer may still come"
    assert len(kept) == len(attempts) == FIRST_KEPT + NEWEST_KEPT
    assert [made.elapsed for made in kept[1:FIRST_KEPT]] == [*range(FIRST_KEPT - 1)]
    assert [made.elapsed for made in kept[-3:]] == [997, 998, 999]
    assert attempts.newest is kept[-1]
    assert attempts.kinds() == {
        "ConnectionLostError": 1, "BrokerSystemError": 500, "ConnectError": 500, "RequestTimeoutError": 1,
    }  # fmt: skip
