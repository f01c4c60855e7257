"""A simulation as the library's own scenarios use it: they look at brokers, watch a consumer group and count connects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from rmq_async.producer import Producer
from rmq_async.testing.simulation import Machine, Simulation
from rmq_async.testing.simulation.effects import expiry
from rmq_async.testing.simulation.history import Call
from rmq_async.testing.simulation.network import Host
from rmq_async.testing.simulation.simulation import Record
from rmq_protocol.message import MessageExt, MessageQueue

from .connects import Connects
from .group_checkers import group_violations
from .group_log import GroupLog
from .leaks import Leaks
from .retry_checkers import contradictory, early, returned
from .troubles import Troubles
from .watched import WatchedBroker

__all__ = ["CallbackError", "Cluster"]


class CallbackError(asyncio.CancelledError):
    """An error that callbacks of a scenario raise, and that the library reports. Like errors that end a program it is no
    ``Exception``; as a CancelledError it does not end the loop."""


class Cluster(Simulation):
    """A simulation with a record of one consumer group (``group``), which ``check`` checks too."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self.watched: list[WatchedBroker] = []
        """The brokers."""
        self.group = GroupLog(lambda: self.now, lambda: self.watched, unlisted=self._unlisted)
        self._connects = Connects(lambda: self.now)
        self._leaks = Leaks(lambda: self.now)

    def oldest(self, queue: MessageQueue) -> int:
        """Returns the offset of a queue's oldest message, or of its end if it has none."""
        return self._broker(queue).bounds(queue)[0]

    def held(self, queue: MessageQueue, offset: int) -> MessageExt | None:
        """Returns the message at an offset of a queue; None if there is none."""
        return self._broker(queue).held(queue, offset)

    def taken(self, queue: MessageQueue) -> int:
        """Returns the highest offset in a queue at which a broker has lost a message, -1 for none; a later message may have it."""
        return self._broker(queue).taken.get(queue, -1)

    def held_to(self, topic: str) -> dict[MessageQueue, int]:
        """Returns the offset behind the newest message of each queue of a topic that consumers may read."""
        return {queue: broker.bounds(queue)[1] for broker in self.watched for queue in broker.queues(topic)}

    def moved(self, machine: str) -> bool:
        """Returns whether a machine has had another address."""
        return any(event.what == "move" and event.machine == machine for event in self.history)

    def _broker(self, queue: MessageQueue) -> WatchedBroker:
        return next(each for each in self.watched if each.name == queue.broker_name)

    @property
    def routed(self) -> bool:
        """Whether all brokers serve, and each name server lists them: they register every 30 s."""
        return all(each.serves and each.is_listed(server) for each in self.watched for server in self.name_servers)

    def _unlisted(self) -> set[str]:
        """Returns the names of the brokers that at least one name server does not list."""
        return {each.name for each in self.watched if not all(each.is_listed(server) for server in self.name_servers)}

    def holders(self, topic: str) -> set[str]:
        """Returns the names of the running brokers that have a topic."""
        return {each.name for each in self.brokers if each.running and each.broker.state.topics.get(topic) is not None}

    def expire(self, topic: str, chance: Random) -> None:
        """Deletes the oldest messages of a drawn queue of a topic, as the fault "broker-expire" does of any topic."""
        expiry(self, topic)(chance, 0.0)

    @property
    def storms(self) -> Sequence[str]:
        """A line for each flood of connects from a client machine to a server."""
        return self._connects.found

    def connecting(self, machine: Machine, address: str) -> None:
        if type(machine) is Machine:
            self._connects.add(machine.name, address)

    def calling(self, producer: Producer, call: Call) -> None:
        self._leaks.look(producer, call.machine, call.what)

    def new_broker(self, name: str, host: Host, name_servers: Sequence[str]) -> WatchedBroker:
        self.watched.append(WatchedBroker(name, self, host, name_servers))
        return self.watched[-1]

    def violations(self, record: Record) -> list[str]:
        losses = [loss for broker in self.watched for loss in broker.losses]
        troubles = Troubles(record.faults, record.ends, record.stopped)
        pops = [request for broker in self.watched for request in broker.pop_requests]
        found = group_violations(self.group, record.calls, record.stored, troubles, record.excused, losses, pops)
        return [
            *super().violations(record),
            *early(record.calls),
            *contradictory(record.calls),
            *returned(record.calls, record.ends, self.history),
            *self._leaks.found(record.ends),
            *found,
        ]

    def unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), CallbackError):
            super().unhandled(loop, context)
