"""What a driver of sends saw, and the checker that holds it against what was read. The checker knows no client and no clock.

A message's name is its body. ``faults`` finds what must never be, after any faults of the brokers: an acknowledged message
that cannot be read, a message that was not sent, more copies than requests, copies of one message under different ids, a failure
that said "not stored" of a message that is there. That the driver's run was worth judging is a question of its own: ``void``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rmq_async import MessageExt, RocketMQError, SendError, SendResult

from .accounting import Verdict, judge


class Copy(NamedTuple):
    """One message as it was read, once for each time it was read."""

    name: str
    unique_id: str


@dataclass
class History:
    """``requests``: name -> attempts of its call, for every call that ended. ``acknowledged``: name -> unique id."""

    requests: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, str] = field(default_factory=dict)
    failed: dict[str, BaseException] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Name -> how long its call took."""

    def succeeded(self, name: str, result: SendResult, seconds: float) -> None:
        self.requests[name] = result.attempts
        self.acknowledged[name] = result.msg_id
        self.seconds[name] = seconds

    def gave_up(self, name: str, error: RocketMQError, seconds: float) -> None:
        self.requests[name] = error.made if isinstance(error, SendError) else 1
        self.failed[name] = error
        self.seconds[name] = seconds

    @property
    def retried(self) -> int:
        """Calls of more than one attempt."""
        return sum(requests > 1 for requests in self.requests.values())

    @property
    def slowest(self) -> float:
        return max(self.seconds.values(), default=0.0)


def copies(messages: Iterable[MessageExt]) -> list[Copy]:
    return [Copy(message.body.decode(), message.msg_id) for message in messages]


def verdict(history: History, read: Sequence[Copy]) -> Verdict:
    return judge(history.requests.keys(), history.acknowledged.keys(), [copy.name for copy in read])


def faults(history: History, read: Sequence[Copy], *, may_lose: bool = False) -> list[str]:
    """What is wrong, one line per kind of fault and message. ``may_lose``: the broker was killed before it flushed."""
    counts = verdict(history, read)
    found = [f"strange: {name} was read and never sent" for name in counts.strange]
    if not may_lose:
        found += [f"lost: {name} was acknowledged and is not there" for name in counts.lost]
    by_name: dict[str, list[str]] = {}
    for name, unique_id in read:
        by_name.setdefault(name, []).append(unique_id)
    for name, unique_ids in by_name.items():
        if name not in history.requests:
            continue
        if len(unique_ids) > history.requests[name]:
            found.append(f"duplicated: {name} was read {len(unique_ids)} times after {history.requests[name]} requests")
        if not getattr(history.failed.get(name), "maybe_stored", True):
            found.append(f"denied: {name} is there, and its call said that it is not")
        known = {history.acknowledged[name]} if name in history.acknowledged else set(unique_ids[:1])
        if set(unique_ids) != known:
            found.append(f"ids: {name} was acknowledged as {sorted(known)} and read as {sorted(set(unique_ids))}")
    return found


def void(history: History, lost_connections: int) -> bool:
    """Nothing happened to any send, so that the run says nothing."""
    return not history.retried and not history.failed and not lost_connections
