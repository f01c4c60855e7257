"""Errors of failed calls, such as SendError, which lists the attempts that ``Attempts`` keeps.

The text of a SendError stays below one KiB, regardless of the number of attempts and the length of the brokers' remarks.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeVar, cast

from rmq_protocol.errors import RocketMQError

from ..._text import printable
from ...errors import Attempt, ConnectError, RequestTimeoutError, SendError
from ...tracebacks import own_copy
from .attempts import Attempts, kind_of

MOST_BYTES: Final = 1000
MOST_SHOWN: Final = 4
"""Maximum number of attempts in the text of an error. If there are more, the text has the first two and the last two."""
LONGEST_TOPIC: Final = 140
LONGEST_BROKER: Final = 60
LONGEST_REASON: Final = 300
MOST_KINDS: Final = 5

Error = TypeVar("Error", bound=BaseException)


def failure(topic: str, attempts: Attempts, elapsed: float, unreached: ConnectError | None = None) -> RocketMQError:
    """Return the error of a call to ``topic`` that made at least one attempt, of which none succeeded in ``elapsed`` seconds.

    Args:
        unreached: The error of the wait for a connection, if the call waited for one until its deadline.
    """
    newest = attempts.newest
    assert newest is not None
    last = newest.error
    if attempts.made == 1 and isinstance(last, RocketMQError):
        only = cast(RocketMQError, own_copy(last))  # copied, because frames of other callers may refer to ``last``
        only.maybe_stored = newest.maybe_stored
        return explained(only, topic, newest.broker, elapsed)
    error = SendError(
        _text(topic, attempts, elapsed, unreached),
        [record.public() for record in attempts],
        made=attempts.made,
        maybe_stored=attempts.maybe_stored,
        code=getattr(last, "code", None),
        broker=newest.target.queue.broker_name,
        address=newest.target.address,
    )
    error.__cause__ = last
    return error


def no_time(topic: str, elapsed: float, address: str | None) -> RequestTimeoutError:
    """Return the error of a call that had no time for an attempt.

    Args:
        address: Address of the first target, if one was chosen.
    """
    why = "" if address is None else f": there is no connection to {address} yet"
    text = f"send to topic {topic} failed: {elapsed:.3g} s passed before the first attempt{why}; use a longer timeout"
    return RequestTimeoutError(text)


def explained(error: Error, topic: str, broker: str, elapsed: float) -> Error:
    """Return the error of a call's only attempt. For a timeout, first add the topic, the seconds and the broker to its text."""
    if type(error) is RequestTimeoutError:
        error.args = (f"send to topic {topic} failed after {elapsed:.3g} s on {broker}: {error}",)
    return error


def not_reached(address: str, count: int, reason: str, seconds: float) -> ConnectError:
    """Return the error of a call that waited ``seconds`` for a connection until its deadline.

    Args:
        count: Number of connection attempts that failed during the wait.
        reason: The error of the last of these attempts.
    """
    tries = f"{count} more attempts to connect failed" if count != 1 else "1 more attempt to connect failed"
    why = f", the last: {printable(reason, LONGEST_REASON)}" if reason else ""
    return ConnectError(
        f"no connection to {address} for {seconds:.3g} s; {tries}{why}; check that the broker runs", address=address
    )


def reached_late(address: str, seconds: float) -> ConnectError:
    """Return the error of a call that was not released in time, although its broker was reconnected."""
    return ConnectError(
        f"{address} was reconnected, but the calls that waited for it are released one after another, and this call was not "
        f"released within {seconds:.3g} s; use a longer timeout",
        address=address,
    )


def _text(topic: str, attempts: Attempts, elapsed: float, unreached: ConnectError | None) -> str:
    records = [record.public() for record in attempts]
    if attempts.made > MOST_SHOWN:
        half = MOST_SHOWN // 2
        shown = [*zip(range(1, half + 1), records[:half], strict=True)]
        shown += zip(range(attempts.made - half + 1, attempts.made + 1), records[-half:], strict=True)
        rest = attempts.kinds() - Counter(kind_of(attempt.error) for _, attempt in shown)
        said = ", ".join(f"{count} {kind}" for kind, count in rest.most_common(MOST_KINDS))
        between = f"{attempts.made - MOST_SHOWN} more ({said})"
    else:
        shown, between = [*enumerate(records, 1)], ""
    waited = unreached is not None and unreached is not records[-1].error
    tail = f"; {_cut(str(unreached), LONGEST_REASON)}" if waited else ""
    head = f"send to topic {printable(topic, LONGEST_TOPIC)} failed after {attempts.made} attempts in {elapsed:.3g} s: "
    share = (MOST_BYTES - len((head + between + tail).encode())) // len(shown) - 2
    parts = [_cut(_attempt(number, attempt), share) for number, attempt in shown]
    if between:
        parts.insert(MOST_SHOWN // 2, between)
    return head + "; ".join(parts) + tail


def _attempt(number: int, attempt: Attempt) -> str:
    broker = printable(attempt.queue.broker_name, LONGEST_BROKER)
    why = printable(attempt.error, LONGEST_REASON) if attempt.error is not None else "no answer"
    return f"{number}. {broker} {attempt.address} {attempt.elapsed:.3f} s: {why}"


def _cut(text: str, most: int) -> str:
    """Return ``text``, cut to ``most`` bytes of UTF-8."""
    encoded = text.encode()
    return text if len(encoded) <= most else encoded[: most - 3].decode(errors="ignore") + "..."
