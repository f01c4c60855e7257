"""What a send call does next, as pure decisions; see ``rmq_async/producer/policy.py``."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from rmq_async import errors
from rmq_async.producer.config import RETRY_CODES
from rmq_async.producer.policy import Step, Verdict, attempt_cap, is_retriable, next_step, pause_before
from rmq_protocol.constants import ResponseCode

TIMEOUT = errors.RequestTimeoutError("late", maybe_stored=True)
REFUSED = errors.ConnectError("refused")
BUSY = errors.broker_error(ResponseCode.SYSTEM_BUSY, "busy")
GONE = errors.broker_error(29, "request queueId[7] is illegal, TopicConfig [topicName=T, readQueueNums=4, writeQueueNums=2]")
ILLEGAL = errors.broker_error(ResponseCode.MESSAGE_ILLEGAL, "too large")


class Made(NamedTuple):
    """An attempt as the policy sees it."""

    broker: str
    error: BaseException | None = TIMEOUT
    open: bool = False


def silent(broker: str) -> Made:
    """Given up, and its answer may still come."""
    return Made(broker, TIMEOUT, True)


def decide(*made: Made, brokers: str = "abc", remaining: float = 3.0, retries: int = 2, **options: Any) -> Step:
    settings: dict[str, Any] = {"attempt_timeout": None, "retry_codes": RETRY_CODES}
    return next_step(made, brokers, retries=retries, remaining=remaining, **(settings | options))


def tries(brokers: str, cap: float | None = None) -> Step:
    return Step(Verdict.TRY, frozenset(brokers), cap)


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
        ((Made("a", REFUSED),), {"remaining": 3.0}, tries("bc", 1.5)),
        # all tried: any of them that has answered or is known to have nothing, but the newest one's only where it is alone
        ((Made("a", REFUSED), Made("b", REFUSED)), {"brokers": "ab"}, tries("a")),
        ((Made("a", REFUSED), Made("b", REFUSED), Made("a", REFUSED)), {"brokers": "ab", "retries": 4}, tries("b")),
        ((Made("a", REFUSED), Made("b", BUSY), Made("c", REFUSED)), {"retries": 4}, tries("ab")),
        ((Made("a", REFUSED), Made("b", REFUSED)), {"brokers": "b"}, tries("b")),
        ((Made("a", BUSY),), {"brokers": "a"}, tries("a")),
        ((Made("a", REFUSED), Made("a", REFUSED)), {"brokers": "a"}, tries("a")),
        # a broker that has not answered is not sent to again
        ((silent("a"), Made("b", BUSY)), {"brokers": "ab"}, tries("b")),
        ((silent("a"),), {"brokers": "a"}, WAIT),
        ((silent("a"), silent("b")), {"brokers": "ab"}, WAIT),
        ((Made("a", None, True),), {"brokers": "a"}, WAIT),
        # it closed meanwhile: the answer cannot come any more
        ((Made("a"),), {"brokers": "a"}, tries("a")),
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
        ((Made("a", GONE), Made("b", GONE), Made("c", GONE)), {"retries": 0}, tries("ab")),
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
    assert (step.verdict, step.brokers) == (expected.verdict, expected.brokers)
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


@pytest.mark.parametrize("code", list(ResponseCode))
def test_the_configured_codes_decide_about_answers(code: ResponseCode) -> None:
    error = errors.broker_error(code, "no")
    assert is_retriable(error, RETRY_CODES) is (code in {1, 2, 14, 16, 17, 204, 205, 1500})
    assert is_retriable(error, frozenset({int(code)}))
    assert not is_retriable(error, frozenset())


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
    error = errors.broker_error(code, remark)
    assert type(error) is kind
    assert error.code == code
    assert not is_retriable(error, RETRY_CODES)


def test_code_16_without_such_a_remark_is_tried_elsewhere() -> None:
    error = errors.broker_error(16, "the broker[127.0.0.1] sending message is forbidden")
    assert type(error) is errors.NoPermissionError
    assert is_retriable(error, RETRY_CODES)


@pytest.mark.parametrize("code", [29, 1])
def test_broker_error_names_a_queue_that_is_gone(code: int) -> None:
    error = errors.broker_error(code, str(GONE.args[0]).partition("INVALID_PARAMETER: ")[2].rstrip(")"), broker="a")
    assert isinstance(error, errors.QueueNotExistError)
    assert (error.code, error.queue_id, error.queues) == (code, 7, 4)
    assert "topic T has no queue 7 on a: it has 4 there" in str(error)
    assert is_retriable(error, frozenset())
    assert type(errors.broker_error(29, "any other")) is errors.InvalidParameterError


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


def test_only_a_broker_that_is_too_busy_makes_the_next_attempt_wait() -> None:
    assert pause_before([], 3.0, 1.0) == 0
    assert pause_before([silent("a")], 3.0, 1.0) == 0
    assert pause_before([Made("a", REFUSED)], 3.0, 1.0) == 0
    assert pause_before([Made("a", errors.broker_error(1, "oops"))], 3.0, 1.0) == 0
    assert pause_before([Made("a", BUSY), Made("b", REFUSED)], 3.0, 1.0) == 0
    assert pause_before([Made("a", BUSY)], 3.0, 1.0) == pytest.approx(0.05)
    assert pause_before([Made("a", errors.broker_error(215, "flow"))], 3.0, 1.0) == pytest.approx(0.05)


def test_pauses_double_up_to_a_second_and_jitter_halves_them_at_most() -> None:
    pauses = [pause_before([Made("a", BUSY)] * count, 1000.0, 1.0) for count in range(1, 9)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])
    assert [pause_before([Made("a", BUSY)] * 3, 1000.0, jitter) for jitter in (0.0, 0.5)] == pytest.approx([0.1, 0.15])


def test_a_pause_takes_a_quarter_of_the_budget_at_most() -> None:
    assert pause_before([Made("a", BUSY)], 0.04, 1.0) == pytest.approx(0.01)
    assert pause_before([Made("a", BUSY)], 0.0, 1.0) == 0
