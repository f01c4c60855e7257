"""Faults in the data that brokers store, and in the data that name servers have about brokers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.message import MessageQueue

from ..faults import LONGEST_DURATION, Effect
from ..servers import FLUSH_INTERVAL, BrokerMachine, NameServerMachine
from .effect import Cluster, drawn, once

SIZES: Final = (1, 2, 3, 6, 12)
"""Numbers of queues to which topics are resized."""
TAKEN_BACK: Final = (1, 10, 100)
"""Maximum numbers of messages that a new master does not have."""
SLOW_FLUSHES: Final = (2.0, 10.0, 60.0)
"""Seconds between two flushes of a slow disk."""
MOST_LATE: Final = 20
"""Maximum number of sends whose response is FLUSH_DISK_TIMEOUT."""


def truncate(cluster: Cluster, chance: Random, machine: BrokerMachine) -> Effect:
    """Remove the newest messages of a broker, at once or after a time without a master. This happens when a replica that lagged
    behind becomes the master, or when a broker starts with an older store.
    """
    away = chance.random() < 0.5
    if away:
        machine.crash()
    taken = machine.truncate(chance.choice(TAKEN_BACK))
    cluster.record(machine.name, "truncate", messages=taken)
    if away:
        return Effect(machine.restart, lambda: taken > 0)
    machine.broker.listener.drop_connections()
    return once(taken > 0)


def expire(cluster: Cluster, topic: str | None, chance: Random, machine: BrokerMachine) -> Effect | None:
    """Delete the oldest messages of a queue. The minimum offset is corrected at once or later.

    Args:
        topic: The name of the topic. None means any user topic.
    """
    topics = _topics(machine) if topic is None else [topic]
    queue = drawn(chance, [queue for name in topics for queue in _queues(machine, name)])
    if queue is None:
        return None
    before, corrected = chance.randint(*machine.bounds(queue)), chance.random() < 0.5
    deleted = machine.expire(queue, before, corrected=corrected)
    cluster.record(machine.name, "expire", queue=queue, before=before)
    return once(deleted > 0)


def resize(cluster: Cluster, chance: Random, machine: BrokerMachine) -> Effect | None:
    """Resize a topic, which then has more or fewer queues for a while."""
    # administrators cannot name retry topics of pops that contain a "+"
    topic = drawn(chance, [name for name in _topics(machine) if "+" not in name])
    if topic is None:
        return None
    old, new = machine.resize(topic, chance.choice(SIZES))
    cluster.record(machine.name, "resize", topic=topic, queues=new)
    before = machine.requests

    def end() -> None:
        machine.resize(topic, old)
        cluster.record(machine.name, "resize", topic=topic, queues=old)

    return Effect(end, lambda: new != old and machine.requests != before)


def slow_disk(chance: Random, machine: BrokerMachine) -> Effect:
    """Delay flushes, so that a power loss removes more messages. Respond to up to ``MOST_LATE`` sends with FLUSH_DISK_TIMEOUT."""
    log, failures = machine.log, machine.broker.failures
    before = log.appended
    log.flush_interval = chance.choice(SLOW_FLUSHES)
    late = chance.randint(0, MOST_LATE)
    failure = failures.add(ResponseCode.FLUSH_DISK_TIMEOUT, late, RequestCode.SEND_MESSAGE_V2) if late else None

    def end() -> None:
        log.flush_interval = FLUSH_INTERVAL
        log.flush()
        if failure is not None:
            failures.take_back(failure)

    return Effect(end, lambda: log.appended > before)


def forget(cluster: Cluster, chance: Random, machine: NameServerMachine) -> Effect:
    """Make a name server hide a broker and ignore its registrations."""
    known, broker = machine.registrations, chance.choice(cluster.brokers).name
    before = known.differences
    known.forgotten[broker] = None
    cluster.record(machine.name, "forget", broker=broker, until=cluster.now + LONGEST_DURATION)
    return Effect(lambda: known.forgotten.pop(broker, None), lambda: known.differences > before)


def empty(cluster: Cluster, chance: Random, machine: NameServerMachine) -> Effect:
    """Make a name server forget all brokers and ignore all registrations, as for some seconds after a restart."""
    known, brokers = machine.registrations, [broker.name for broker in cluster.brokers]
    hidden = [name for name in brokers if name not in known.forgotten]
    before = known.differences
    known.forgotten.update(dict.fromkeys(hidden))
    for name in hidden:
        cluster.record(machine.name, "forget", broker=name, until=cluster.now + LONGEST_DURATION)

    def end() -> None:
        for name in hidden:
            known.forgotten.pop(name, None)

    return Effect(end, lambda: known.differences > before)


def disagree(cluster: Cluster, chance: Random, machine: NameServerMachine) -> Effect:
    """Make a name server report more or fewer queues of topics than exist, as if it had missed a change."""
    known = machine.registrations
    before = known.differences
    known.more = chance.choice((-3, -1, 1, 4))
    cluster.record(machine.name, "disagree", more=known.more)

    def end() -> None:
        known.more = 0

    return Effect(end, lambda: known.differences > before)


def _topics(machine: BrokerMachine) -> Sequence[str]:
    """Return the names of all topics except system topics. Retry topics of groups are included."""
    table = machine.disk.topics
    return [topic.config.topic_name for topic in table if not table.is_own(topic.config.topic_name)]


def _queues(machine: BrokerMachine, topic: str) -> Sequence[MessageQueue]:
    """Return the queues of a topic that have messages. Return no queues for an unknown topic."""
    found = machine.disk.topics.get(topic)
    queues = () if found is None else found.queues()
    return [MessageQueue(topic, machine.name, queue.queue_id) for queue in queues if queue.oldest < queue.max_offset]
