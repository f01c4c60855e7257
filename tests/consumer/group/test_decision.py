"""What to do with a message after its handler has ended."""

from __future__ import annotations

import pytest

from rmq_async import DeadLetter, MessageExt, Outcome, Retry, RetryLater
from rmq_async.consumer.handling.decision import DELAYS, Decision, decide, level_of
from rmq_async.consumer.subscription import Subscription


async def handler(message: MessageExt) -> None:
    """Never called here."""


plain = Subscription("T", handler, dead_letter_on=(KeyError, OSError))


@pytest.mark.parametrize(
    ("delay", "level"), [(0.0, 1), (1.0, 1), (1.1, 2), (5, 2), (90.0, 6), (7200.0, 18), (7201.0, 18), (float("inf"), 18)]
)
def test_level_of_delay(delay: float, level: int) -> None:
    assert level_of(delay) == level
    assert DELAYS[level - 1] >= min(delay, 7200.0)


@pytest.mark.parametrize(
    ("error", "retry", "attempt", "expected"),
    [
        (None, Retry(), 1, Decision(Outcome.DONE)),
        (ValueError(), Retry(), 1, Decision(Outcome.RETRIED)),
        (ValueError(), Retry(limit=2), 2, Decision(Outcome.RETRIED, max_times=2)),
        (ValueError(), Retry(limit=2), 3, Decision(Outcome.DEAD_LETTERED, -1, reason="attempt 3 of 3")),
        (ValueError(), Retry(limit=0), 1, Decision(Outcome.DEAD_LETTERED, -1, reason="attempt 1 of 1")),
        (ValueError(), Retry(delays=(1, 10)), 1, Decision(Outcome.RETRIED, 1, delay=1.0)),
        (ValueError(), Retry(delays=(1, 10)), 2, Decision(Outcome.RETRIED, 3, delay=10.0)),
        (ValueError(), Retry(delays=(1, 10)), 9, Decision(Outcome.RETRIED, 3, delay=10.0)),
        (ValueError(), Retry(delays=lambda attempt: attempt * 60.0), 2, Decision(Outcome.RETRIED, 6, delay=120.0)),
        (ValueError(), Retry(delays=(9000,)), 1, Decision(Outcome.RETRIED, 18, cut=True, delay=7200.0)),
        (RetryLater(90), Retry(), 1, Decision(Outcome.RETRIED, 6, delay=90.0)),
        (RetryLater(), Retry(delays=(30,)), 1, Decision(Outcome.RETRIED, 4, delay=30.0)),
        (RetryLater(), Retry(), 1, Decision(Outcome.RETRIED)),
        (RetryLater(1), Retry(limit=1), 2, Decision(Outcome.DEAD_LETTERED, -1, reason="attempt 2 of 2")),
        (DeadLetter("bad json"), Retry(), 1, Decision(Outcome.DEAD_LETTERED, -1, reason="bad json")),
        (KeyError(), Retry(), 1, Decision(Outcome.DEAD_LETTERED, -1)),
        (FileNotFoundError(), Retry(), 1, Decision(Outcome.DEAD_LETTERED, -1)),
    ],
)
def test_decide(error: BaseException | None, retry: Retry, attempt: int, expected: Decision) -> None:
    assert decide(error, plain, retry, attempt) == expected
