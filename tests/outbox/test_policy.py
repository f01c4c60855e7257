"""What is done after a failure; no clock, no database, no loop."""

from __future__ import annotations

import pytest

from rmq_async import InvalidMessageError, RocketMQError
from rmq_async.errors import BrokerError, MessageIllegalError, RequestTimeoutError, SendError, SystemBusyError
from rmq_async.outbox.policy import LONGEST_PAUSE, LONGEST_PROBE_PAUSE, FailedTopics, error_text, given_up, pause_before


def caused(cause: BaseException) -> SendError:
    error = SendError.__new__(SendError)
    error.__cause__ = cause
    return error


HOPELESS = InvalidMessageError("too long")


def test_a_message_that_is_refused_for_itself_is_given_up() -> None:
    assert given_up(HOPELESS)
    assert given_up(caused(HOPELESS))
    assert issubclass(MessageIllegalError, RocketMQError)
    assert given_up(caused(MessageIllegalError.__new__(MessageIllegalError)))


def test_what_an_operator_may_mend_is_tried_again() -> None:
    for kind in (RequestTimeoutError, SystemBusyError, BrokerError):
        error = kind.__new__(kind)
        error.code = 2  # type: ignore[attr-defined]
        assert not given_up(error)
        assert not given_up(caused(error))
    assert not given_up(OSError("away"))
    assert not given_up(RuntimeError("a hook's bug"))


@pytest.mark.parametrize(("attempt", "seconds"), [(2, 1.0), (3, 2.0), (4, 4.0), (6, 15.0), (7, 15.0), (1000, 15.0)])
def test_pauses_double_up_to_a_limit(attempt: int, seconds: float) -> None:
    assert pause_before(attempt, 1.0, 1.0) == seconds
    assert pause_before(attempt, 1.0, 0.0) == pytest.approx(seconds * 0.8)
    assert pause_before(attempt, 100.0, 1.0) == LONGEST_PAUSE


def test_a_pause_is_never_nothing() -> None:
    assert pause_before(2, 1e-9, 0.0) == pytest.approx(0.008)


def test_an_error_is_reported_on_one_line_and_cut() -> None:
    assert error_text(ValueError("a\nb\x00")) == "ValueError: a b\\x00"
    assert len(error_text(ValueError("x" * 5000))) < 1100


def test_a_topic_in_trouble_is_looked_at_ever_more_seldom_until_it_succeeds() -> None:
    troubles, now, pauses = FailedTopics(1.0), 100.0, []
    for _ in range(6):
        troubles.failed("T", now, now)
        assert "T" in troubles
        when = troubles.next_due()
        assert when is not None
        assert troubles.due(when - 0.001) == []
        pauses.append(when - now)
        assert troubles.due(when) == ["T"]
        now = when
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert max(pauses) == LONGEST_PROBE_PAUSE
    troubles.succeeded("T", now)
    assert "T" not in troubles
    assert troubles.next_due() is None


def test_sends_that_began_before_the_last_look_count_once() -> None:
    troubles = FailedTopics(1.0)
    for _ in range(50):
        troubles.failed("T", 10.0, 11.0)
    assert troubles.next_due() == 12.0


def test_a_failure_that_began_before_a_success_says_nothing() -> None:
    troubles = FailedTopics(1.0)
    troubles.succeeded("T", 10.0)
    troubles.failed("T", 9.0, 11.0)
    assert troubles.topics() == []
    troubles.failed("T", 10.5, 11.0)
    assert troubles.topics() == ["T"]


def test_topics_in_trouble_do_not_share_it() -> None:
    troubles = FailedTopics(1.0)
    troubles.failed("A", 1.0, 1.0)
    troubles.failed("B", 5.0, 5.0)
    assert troubles.due(2.5) == ["A"]
    assert sorted(troubles.topics()) == ["A", "B"]
    assert "C" not in troubles


def test_troubles_without_failures_are_forgotten() -> None:
    """The rows of 1,000 topics were purged, or another relay sends them: no look says more about them."""
    troubles = FailedTopics(1.0)
    for number in range(1000):
        troubles.failed(f"T{number}", 0.0, 1.0)
    troubles.failed("still", 1.0, 1.0)
    for now in range(2, 400):
        if "still" in troubles.due(float(now)):
            troubles.failed("still", float(now), now + 0.5)
    assert troubles.topics() == ["still"]
