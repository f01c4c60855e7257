"""The actions of the members of a consumer group in a run, and the offsets of the brokers: the input of ``group_checkers``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, NamedTuple

from rmq_async.consumer import Consumer
from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.pop import pop_retry_topic, pop_retry_topic_v1

from .watched import Commit, WatchedBroker

__all__ = ["GROUP", "Backlog", "Delivery", "GroupLog", "Life", "Sample", "Unread"]

GROUP: Final = "workers"
"""Name of the group whose members are watched."""

How = Literal["done", "failed", "dead", "cancelled"]


@dataclass(slots=True)
class Life:
    """A member from its start to its stop. ``ended``: None for one that was killed, or that still runs."""

    member: str
    began: float
    ended: float | None = None


@dataclass(slots=True)
class Delivery:
    """One message in one call of a handler. ``queue``, ``offset``: the place that was pulled, in the retry topic for a message
    delivered again. ``life``: index of its member in ``GroupLog.lives``. ``began``, ``ended``: virtual seconds since the beginning;
    ``ended`` is None while the handler runs, and if its process was killed. ``how``: "done" if the message was handled with
    success, "failed" if it is to be delivered again, "dead" if it was given up, "cancelled" if the handler was cancelled; empty
    where ``ended`` is None. ``key``: the message's first key, empty without one. ``call``: a number, the same for the messages of
    one call."""

    queue: MessageQueue
    offset: int
    unique_id: str
    life: int
    began: float
    ended: float | None = None
    how: How | Literal[""] = ""
    key: str = ""
    call: int = -1


class Backlog(NamedTuple):
    """The backlog of a group: by queue, the first offset that the group has not committed, and the offset behind its last message.
    ``resting``: no fault is active, and none begins for as long as a member needs to continue. ``ghosts``: a broker lists a client
    that is no running member, or one twice, as for 120 s after its connection fell silent. ``taken_away``: queues that were removed
    from their topic, with messages that the group has not committed. ``locked``: queues of ordered topics that a member has locked
    which has ended, as for up to 60 s after that. ``unlisted``: brokers that a name server does not list.
    """

    time: float
    queues: Mapping[MessageQueue, tuple[int, int]]
    resting: bool = False
    ghosts: bool = False
    taken_away: Collection[MessageQueue] = ()
    locked: Collection[MessageQueue] = ()
    unlisted: Collection[str] = ()


class Sample(NamedTuple):
    """The ``health()`` of a member at a time. ``problems``: code and text of each. ``held``: the queues that it reads."""

    time: float
    life: int
    ready: bool
    problems: tuple[tuple[str, str], ...]
    held: Collection[MessageQueue] = ()


class Unread(NamedTuple):
    """Messages that a group has not popped. ``queues``: their unique ids by queue. ``in_flight``: unique ids of messages that it
    has popped and not acknowledged. ``readable``: all queues that consumers may read."""

    time: float
    queues: Mapping[MessageQueue, Sequence[str]]
    in_flight: Sequence[str]
    readable: Collection[MessageQueue]


@dataclass(slots=True)
class GroupLog:
    """The record of a group's actions. ``now``: returns the seconds since the beginning. ``brokers``: returns the brokers of the
    cluster. ``unlisted``: returns the names of those that a name server does not list.

    ``order``: that of all subscriptions; ``attempts``: maximum attempts of a message. ``client_ids``: ids of the running
    members, by machine. ``starts``: times at which members have joined, by client id. ``commit_interval``, ``max_span``:
    settings of all members. ``in_hand``: seconds for which a message that is read by hand delays the release of its queue;
    after them the next owner gets it too, because the body of an iteration cannot be cancelled. ``lease``: seconds for which a
    popped message is invisible; None for members that pull. ``failovers``: times between which the only broker had no master, in
    a scenario that makes these failovers itself. ``unread``: what members that pop had not popped, by time.
    ``fine_from``: the time from which on no member may have a problem. ``idle``: the backlog after the last member has stopped.
    """

    now: Callable[[], float]
    brokers: Callable[[], Sequence[WatchedBroker]]
    topics: tuple[str, ...] = ()
    unlisted: Callable[[], Collection[str]] = tuple
    order: Literal["key", "queue"] | None = None
    attempts: int = 1
    commit_interval: float = 1.0
    lease: float | None = None
    unread: list[Unread] = field(default_factory=list)
    max_span: float = inf
    in_hand: float = inf
    fine_from: float = inf
    lives: list[Life] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    backlogs: list[Backlog] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    client_ids: dict[str, str] = field(default_factory=dict)
    starts: dict[str, list[float]] = field(default_factory=dict)
    failovers: list[tuple[float, float]] = field(default_factory=list)
    idle: Backlog | None = None

    def live(self, member: str) -> int:
        """Adds the life of a member that starts; returns its index in ``lives``."""
        self.lives.append(Life(member, self.now()))
        return len(self.lives) - 1

    def joined(self, member: str, consumer: Consumer) -> None:
        assert consumer._instance is not None  # noqa: SLF001 - no public value is the id of a member
        client_id = self.client_ids[member] = consumer._instance.client_id  # noqa: SLF001 - no public value is the id of a member
        self.starts.setdefault(client_id, []).append(self.now())

    def stopped(self, life: int) -> None:
        self.lives[life].ended = self.now()
        self.client_ids.pop(self.lives[life].member, None)

    def begin(self, message: MessageExt, life: int, call: int | None = None) -> Delivery:
        """Adds a message of a call that begins. ``call``: the call of the first message of its batch; None for a new call."""
        number = len(self.deliveries) if call is None else call
        key = message.keys[0] if message.keys else ""
        delivery = Delivery(message.queue, message.queue_offset, message.msg_id, life, self.now(), key=key, call=number)
        self.deliveries.append(delivery)
        return delivery

    def end(self, delivery: Delivery, how: How) -> None:
        delivery.ended, delivery.how = self.now(), how

    def sample(self, life: int, ready: bool, problems: Iterable[tuple[str, str]], held: Collection[MessageQueue] = ()) -> None:
        self.samples.append(Sample(self.now(), life, ready, tuple(problems), held))

    def look(self, *, resting: bool = False) -> Backlog:
        """Records and returns the present backlog of the group's queues; brokers that do not serve are left out."""
        queues: dict[MessageQueue, tuple[int, int]] = {}
        taken_away: list[MessageQueue] = []
        locked: list[MessageQueue] = []
        ghosts, live = False, list(self.client_ids.values())
        for each in self.brokers():
            if not each.serves:
                continue
            listed = each.members(GROUP)
            ghosts = ghosts or len(set(listed)) < len(listed) or any(client_id not in live for client_id in listed)
            for topic in (*self.topics, RETRY_TOPIC_PREFIX + GROUP):
                for queue in each.queues(topic):
                    queues[queue] = _unread(each, queue)
                    if self.order is not None and self._is_left_behind(each.lock_of(GROUP, queue)):
                        locked.append(queue)
                for queue in each.taken_away(topic):
                    low, high = _unread(each, queue)
                    if low < high:
                        taken_away.append(queue)
        self.backlogs.append(Backlog(self.now(), queues, resting, ghosts, taken_away, locked, self.unlisted()))
        return self.backlogs[-1]

    def _is_left_behind(self, lock: tuple[str, float] | None) -> bool:
        """Returns whether no running member has locked a queue, but one that has ended. A member that was made anew in the same
        process has the client id of the former one. ``lock``: see ``WatchedBroker.lock_of``."""
        if lock is None:
            return False
        client_id, age = lock
        members = [member for member, of in self.client_ids.items() if of == client_id]
        newest = max((life.began for life in self.lives if life.member in members), default=inf)
        return newest > self.now() - age

    def delayed(self) -> int:
        """Returns the number of messages that were given back and wait for the end of their delay, on brokers that serve."""
        return sum(each.delayed(GROUP) for each in self.brokers() if each.serves)

    def look_for_pops(self) -> Unread:
        """Records and returns the messages that the group has not popped; brokers that do not serve are left out."""
        queues: dict[MessageQueue, Sequence[str]] = {}
        in_flight: list[str] = []
        readable: list[MessageQueue] = []
        for each in self.brokers():
            if not each.serves:
                continue
            in_flight += each.in_flight(GROUP)
            for topic in (*self.topics, *self.retry_topics):
                for queue in each.queues(topic):
                    readable.append(queue)
                    low, high = each.bounds(queue)
                    found = each.unique_ids(queue, max(low, each.popped(GROUP, queue)), high)
                    if found:
                        queues[queue] = found
        self.unread.append(Unread(self.now(), queues, in_flight, readable))
        return self.unread[-1]

    @property
    def retry_topics(self) -> list[str]:
        """The topics of redelivered popped messages, in the old and the new form."""
        return [name(topic, GROUP) for topic in self.topics for name in (pop_retry_topic_v1, pop_retry_topic)]

    @property
    def commits(self) -> list[Commit]:
        """The commits of the group, in the order of their times."""
        found = [commit for broker in self.brokers() for commit in broker.commits if commit.group == GROUP]
        return sorted(found, key=lambda commit: commit.time)


def _unread(broker: WatchedBroker, queue: MessageQueue) -> tuple[int, int]:
    """Returns the first offset that the group has not committed, and the one behind the queue's last message."""
    low, high = broker.bounds(queue)
    return max(low, broker.committed(GROUP, queue)), high
