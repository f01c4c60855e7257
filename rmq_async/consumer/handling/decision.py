"""The decision about a message after its handler has ended. It does no I/O."""

from __future__ import annotations

from bisect import bisect_left
from math import isnan
from typing import Final, NamedTuple

from ..config import MAX_DELAY, Retry
from ..outcome import DeadLetter, Outcome, RetryLater
from ..subscription import Subscription

DELAYS: Final = (
    1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 420.0, 480.0, 540.0, 600.0, 1200.0, 1800.0, 3600.0, MAX_DELAY,
)  # fmt: skip
"""Seconds of the delay levels 1 to 18 (``messageDelayLevel`` of a broker with default settings)."""
IN_PLACE_DELAYS: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Default seconds before the second, third, ... attempt of an ordered message, or in broadcast. The last value is used for all
further attempts."""
IN_PLACE_LIMIT: Final = 16
"""Default number of attempts after the first attempt of an ordered message, or in broadcast."""
BY_ATTEMPT: Final = 0
"""The level that makes the broker choose the level by the attempts of the message: 3 + reconsume times
(``AbstractSendMessageProcessor.consumerSendMsgBack``)."""
DEAD: Final = -1
"""The level that makes the broker dead-letter the message."""


class Decision(NamedTuple):
    """The decision about a message.

    Attributes:
        level: Delay level in CONSUMER_SEND_MSG_BACK (36).
        max_times: ``maxReconsumeTimes`` in that request; None for the group's setting.
        reason: The reason for the log; "" if the error is sufficient.
        cut: Whether the delay was shortened: to the longest level or, in place, to the end of ``max_hold``.
        in_place: Seconds after which this member itself handles the message again; None if the message is given back.
        delay: Seconds after which a broker is to deliver the message again; None for the default delay.
    """

    outcome: Outcome
    level: int = BY_ATTEMPT
    max_times: int | None = None
    reason: str = ""
    cut: bool = False
    in_place: float | None = None
    delay: float | None = None


def level_of(delay: float) -> int:
    """Return the lowest delay level of at least ``delay`` seconds. Return level 18 (2 h) for a longer delay."""
    return min(bisect_left(DELAYS, delay) + 1, len(DELAYS))


def _delay_of(error: BaseException, retry: Retry, attempt: int) -> float | None:
    """Return the delay of a RetryLater, or else the delay of ``retry``, in seconds, 0 or more. Return None for the default delay.

    Raises:
        AttributeError: For a RetryLater without ``delay``.
        ValueError: For NaN. Errors of ``retry.delays``, and of ``float()`` for a delay that is not a number, also propagate.
    """
    given = error.delay if isinstance(error, RetryLater) else None
    delay = retry.delay_after(attempt) if given is None else float(given)
    if delay is None:
        return None
    if isnan(delay):
        raise ValueError("a delay must be a number of seconds, 0 or more, not NaN")
    return max(delay, 0.0)


def decide(error: BaseException | None, subscription: Subscription, retry: Retry, attempt: int) -> Decision:
    """Return the decision about a message whose handler has ended.

    Args:
        error: The error that the handler raised; None if it returned.
        retry: The retry settings of the subscription, or of the consumer.
        attempt: Number of the attempt that has ended, counted from 1.

    Raises:
        AttributeError: For a DeadLetter without ``reason``. The errors of ``_delay_of`` also propagate.
    """
    if error is None:
        return Decision(Outcome.DONE)
    if isinstance(error, DeadLetter):
        return Decision(Outcome.DEAD_LETTERED, DEAD, reason=error.reason)
    if isinstance(error, subscription.dead_letter_on):
        return Decision(Outcome.DEAD_LETTERED, DEAD)
    if retry.limit is not None and attempt > retry.limit:
        return Decision(Outcome.DEAD_LETTERED, DEAD, reason=f"attempt {attempt} of {retry.limit + 1}")
    delay = _delay_of(error, retry, attempt)
    if delay is None:
        return Decision(Outcome.RETRIED, max_times=retry.limit)
    return Decision(Outcome.RETRIED, level_of(delay), retry.limit, cut=delay > MAX_DELAY, delay=min(delay, MAX_DELAY))


def decide_in_place(error: BaseException, subscription: Subscription, retry: Retry, attempt: int, held_for: float) -> Decision:
    """Return the decision about a failed message of an ordered subscription, or in broadcast. Such a message waits at this member
    for its next attempt, and blocks its key or queue meanwhile.

    The errors of ``decide`` propagate.

    Args:
        held_for: Seconds since the first failed attempt of the message ended. A delay is shortened to end with ``max_hold``.
    """
    if isinstance(error, DeadLetter):
        return Decision(Outcome.DEAD_LETTERED, DEAD, reason=error.reason)
    if isinstance(error, subscription.dead_letter_on):
        return Decision(Outcome.DEAD_LETTERED, DEAD)
    limit = IN_PLACE_LIMIT if retry.limit is None else retry.limit
    if attempt > limit:
        return Decision(Outcome.DEAD_LETTERED, DEAD, reason=f"attempt {attempt} of {limit + 1}")
    delay = _delay_of(error, retry, attempt)
    if delay is None:
        delay = IN_PLACE_DELAYS[min(attempt, len(IN_PLACE_DELAYS)) - 1]
    if retry.max_hold is None:
        return Decision(Outcome.RETRIED, in_place=delay)
    left = retry.max_hold - held_for
    if left <= 0:
        return Decision(Outcome.DEAD_LETTERED, DEAD, reason=f"held for {held_for:.1f} s, longer than max_hold")
    return Decision(Outcome.RETRIED, in_place=min(delay, left), cut=delay > left)
