"""The production table of ``compare.py``: messages as services send them, to a broker that asks for signatures.

1 KiB, tags, a key and two properties, signed. The broker checks who sends (authentication) and whether the user may do so
(authorization); the user is an ordinary one with rights to the topic and one group. Before anything is measured a send without a
signature has to be refused. After each run some of what it stored is read back: each side has to have stored the same message.
"""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Final

from rmq_async import Credentials, MessageExt, MessageQueue, PullConsumer
from support.bare_loop import BareError, BareProducer, connect
from support.clusters import BenchmarkError, Target, create_topic, started_cluster
from support.compare_runs import Job, Run, run_once
from support.runs import Attributes

__all__ = ["ATTRIBUTES", "BODY", "MODES", "parts", "production_target", "refuse_unsigned", "run_checked"]

MODES: Final = ("production-64",)
BODY: Final = 1024
ATTRIBUTES: Final = Attributes(tags="paid", keys="order-17", properties={"shop": "eu-west-1", "schema": "orders/3"})
READ_BACK: Final = 100
"""Of each queue after each run, the last ones."""
USER: Final = Credentials("alice", "a password of alice")
GROUP: Final = "compare-checks"
NO_PERMISSION: Final = 16
CREATE_USER: Final = 3001
CREATE_ACL: Final = 3006


def parts(options: Namespace) -> list[Namespace]:
    """The options of what runs on one broker: ordinary modes, and production modes, of which only Java's client is a peer."""
    found = []
    for production in (False, True):
        part = copy(options)
        part.modes = [mode for mode in options.modes if (mode in MODES) is production]
        part.production = production
        if production:
            part.body = BODY
            part.peers = [name for name in options.peers if name == "java"]
        if part.modes:
            found.append(part)
    return found


@contextmanager
def production_target(options: Namespace) -> Iterator[Target]:
    """A broker with users and rights, and the topic on it; gone afterwards, store included. With --namesrv the cluster given."""
    if options.namesrv:
        place = Target(options.namesrv, options.broker_pid, None, Credentials(options.access_key, options.secret_key))
        asyncio.run(create_topic(place.namesrv, options.topic, place.credentials))
        yield place
        return
    with started_cluster("authorization", small=options.small_servers) as cluster:
        broker = cluster.brokers[0]
        assert cluster.credentials is not None
        asyncio.run(create_topic(cluster.namesrv, options.topic, cluster.credentials))
        asyncio.run(create_user(broker.address, cluster.credentials, options.topic))
        yield Target(cluster.namesrv, broker.pid, broker.directory, USER)


async def create_user(broker: str, administrator: Credentials, topic: str) -> None:
    """USER, who may send to and read the topic, as GROUP."""
    resources = (f"Topic:{topic}", f"Group:{GROUP}")
    rights = [{"resource": each, "actions": ["Pub", "Sub", "Get"], "decision": "Allow"} for each in resources]
    subject = f"User:{USER.access_key}"
    user = {"username": USER.access_key, "password": USER.secret_key, "userType": "Normal", "userStatus": "enable"}
    acl = {"subject": subject, "policies": [{"policyType": "Custom", "entries": rights}]}
    connection = await connect(broker, administrator)
    await connection.ask(CREATE_USER, {"username": USER.access_key}, json.dumps(user).encode())
    await connection.ask(CREATE_ACL, {"subject": subject}, json.dumps(acl).encode())
    connection.transport.close()
    await connection.closed


async def refuse_unsigned(namesrv: str, topic: str) -> str:
    """What the broker says of a send without a signature. Raises BenchmarkError when it takes the message."""
    producer = BareProducer(topic)
    await producer.start(namesrv)
    try:
        await producer.send(b"not signed")
    except BareError as error:
        if error.args[0] == NO_PERMISSION:
            return f"{error.args[0]} {error.args[1]}"
        raise
    finally:
        await producer.stop()
    raise BenchmarkError(
        f"topic {topic}: the broker took a message without a signature; production messages need one with ACL on"
    )


async def run_checked(job: Job) -> Run:
    """``run_once``, and then what the run has stored is read back: a run that stored something else has an ``error``."""
    starts = await ends_of(job)
    run = await run_once(job)
    if run.usable:
        async with _reader(job) as consumer:
            messages = [message for queue, start in starts.items() for message in await _last(consumer, queue, start)]
        run.read_back = len(messages)
        if not messages:
            run.error = "nothing that it stored could be read back"
        elif wrong := next((fault for message in messages if (fault := fault_of(message))), ""):
            run.error = f"it stored another message: {wrong}"
    return run


async def ends_of(job: Job) -> Mapping[MessageQueue, int]:
    async with _reader(job) as consumer:
        return {queue: await consumer.max_offset(queue) for queue in await consumer.queues(job.spec.topic)}


def _reader(job: Job) -> PullConsumer:
    return PullConsumer(GROUP, namesrv=job.namesrv, credentials=job.credentials)


async def _last(consumer: PullConsumer, queue: MessageQueue, start: int) -> list[MessageExt]:
    end = await consumer.max_offset(queue)
    offset = max(start, end - READ_BACK)
    found: list[MessageExt] = []
    while offset < end:
        result = await consumer.pull(queue, offset)
        if result.next_offset <= offset:
            break
        found += result.messages
        offset = result.next_offset
    return found


def fault_of(message: MessageExt) -> str:
    """In what a stored message differs from a production message; empty when it is one."""
    wanted = (ATTRIBUTES.tags, (ATTRIBUTES.keys,), ATTRIBUTES.properties, b"x" * BODY)
    found = (message.tags, message.keys, message.user_properties, message.body)
    for name, one, other in zip(("tags", "keys", "properties", "body"), found, wanted, strict=True):
        if one != other:
            return f"{name} are {one!r:.120}, not {other!r:.120}"
    return ""
