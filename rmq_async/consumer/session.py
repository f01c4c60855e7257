"""The work of a member of a group between its start and its stop, as the face of a consumer asks for it.

Members that pull and members that pop have a session each; what the latter cannot do raises ConfigError.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from rmq_protocol.command import RemotingCommand
from rmq_protocol.message import MessageQueue

from .. import machine
from .._asyncio import StopScope
from .._text import printable
from ..client import BrokerClocks, ClientInstance, brokers_of, loop_problem, name_server_problem
from ..errors import ConfigError
from ..health import Problem
from .attached import Attached
from .by_hand import ByHand
from .calls import HandlerCalls
from .config import ConsumerConfig
from .dispatch import Dispatcher
from .give_backs import GiveBacks
from .group import Conflicts
from .reports import (
    ConsumerHealth,
    ConsumerStats,
    Lag,
    block_problems,
    conflict_problems,
    hangs,
    restart_problems,
    stuck_problems,
)
from .settled import SettledLog
from .subscription import Subscription
from .supervisor import Supervisor

__all__ = ["MemberSession"]


class MemberSession(ABC):
    """One member of a group, from its start to its stop.

    ``group``: on the wire. ``subscriptions``: by topic on the wire. ``label``: the subject of errors.
    """

    by_hand: ByHand | None = None
    """The messages in hand of a user who reads without handlers."""
    attached: Attached
    calls: HandlerCalls | ByHand
    conflicts: Conflicts
    dispatcher: Dispatcher
    give_backs: GiveBacks

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        label: str,
    ) -> None:
        self.instance = instance
        self.group = group
        self.config = config
        self.subscriptions = subscriptions
        self.label = label
        self.settled = SettledLog()
        self.supervisor = Supervisor()

    # -- life

    @abstractmethod
    async def open(self, starting: StopScope) -> None:
        """Joins the group, and waits for the first messages or queues. After an error no task and no registration is left."""

    @abstractmethod
    def quiesce(self) -> None:
        """Begins to stop: asks for no more messages, and drops those without a call."""

    @abstractmethod
    async def close(self, deadline: float) -> None:
        """Leaves the group, drains, commits, and ends all tasks, by ``deadline`` (monotonic) or a second later."""

    @abstractmethod
    def abort(self) -> None:
        """Ends the wait of ``close`` for running handlers, also of a later one."""

    @abstractmethod
    def members_changed(self) -> None:
        """Handles NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    @abstractmethod
    def serve(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Answers requests of tools for this member."""

    # -- control

    @abstractmethod
    def pause(self, given: Sequence[str | MessageQueue]) -> None:
        """Pauses topics and queues, with the names of users; all if none are given."""

    @abstractmethod
    def resume(self, given: Sequence[str | MessageQueue]) -> None:
        """Ends the pauses of topics and queues; all pauses if none are given."""

    @abstractmethod
    async def seek(self, queue: MessageQueue, to: int | Literal["earliest", "latest"] | datetime) -> None:
        """Moves a queue to another offset."""

    @abstractmethod
    def position(self, queue: MessageQueue) -> int:
        """Returns the lowest offset of a queue that is not settled."""

    @abstractmethod
    async def committed(self, queue: MessageQueue) -> int | None:
        """Returns the offset that is kept for the group; None without one. ``queue``: on the wire."""

    @abstractmethod
    async def commit(self) -> None:
        """Sends to the brokers what is settled, and waits for their answers. Raises the first error of a request."""

    @abstractmethod
    async def until_idle(self) -> None:
        """Waits until all messages that the member has or is to get are settled, and no call runs."""

    def wire_topics(self, given: Iterable[object]) -> list[str]:
        """Returns the topics among ``given``, on the wire. Raises ConfigError for a topic without a subscription."""
        names = self.instance.names
        topics = [names.wire(each) for each in given if isinstance(each, str)]
        for topic in topics:
            if topic not in self.subscriptions:
                shown_topic = printable(names.shown(topic))
                raise ConfigError(f"{self.label} has no subscription of topic {shown_topic!r}; name one that it has")
        return topics

    # -- functions of the user

    def is_own_task(self, task: asyncio.Task[Any] | None) -> bool:
        """Returns whether ``task`` is that of a handler call or of a callback, or has messages of an iterator in hand."""
        return self.calls.is_own_task(task)

    def blocking(self, task: asyncio.Task[Any]) -> str | None:
        """Returns the name of the user's function that ``task`` calls; None for another task. From any thread."""
        return self.calls.name_of(task)

    # -- reports; from any thread, and without a request

    @property
    @abstractmethod
    def assignment_shown(self) -> frozenset[MessageQueue]:
        """The queues that the member holds, with the names of users."""

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the member does its work: it has its first share, does not stop, and can call its handlers."""

    @property
    @abstractmethod
    def progress_at(self) -> float | None:
        """The monotonic time of the newest outcome; None where nothing is to be handled."""

    @abstractmethod
    def lag(self) -> Lag:
        """Returns the numbers of messages that are not settled."""

    @abstractmethod
    def stats(self) -> ConsumerStats:
        """Returns the numbers since the start."""

    @abstractmethod
    def problems(self) -> list[Problem]:
        """Returns the problems of this kind of member."""

    def health(self) -> ConsumerHealth:
        """Returns the member's condition."""
        instance, now, running = self.instance, machine.monotonic(), list(self.calls.running)
        blocked = loop_problem(instance)
        _, silence = name_server_problem(instance)
        _, troubles = brokers_of(instance)
        oldest = min(running, key=lambda delivery: delivery.began, default=None)
        problems = [problem for problem in (blocked, silence, *troubles) if problem is not None]
        problems += self.problems()
        problems += conflict_problems(self.conflicts)
        problems += restart_problems(self.supervisor)
        problems += stuck_problems(oldest, self.config.stuck_after)
        problems += block_problems(self.attached.blocked)
        progress = self.progress_at
        return ConsumerHealth(
            live=blocked is None and not any(hangs(delivery) for delivery in running),
            ready=blocked is None and self.is_ready,
            problems=tuple(problems),
            last_progress_age=None if progress is None else max(now - progress, 0.0),
            oldest_unfinished=oldest,
        )

    def oldest_age(self, clocks: BrokerClocks) -> float | None:
        """Returns the age of the oldest message that the member has; None without one."""
        held = [message for delivery in list(self.calls.running) for message in delivery.messages]
        held += [*self.dispatcher.oldest(), *self.give_backs.messages()]
        return max((clocks.age(each.queue.broker_name, each.store_time_ms) for each in held), default=None)
