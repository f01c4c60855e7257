"""A cluster of two brokers and two name servers with its faults, as a scenario sees it, and what a scenario returns.

``simulated.py`` and ``real.py`` implement it. A scenario uses nothing else, so that it is the same text for both. What it returns
is its outcome by kind: no count and no time that two runs need not have in common.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import Any, Final, Protocol

from rmq_async import Admin, Message, MessageExt, Producer, PullConsumer, RocketMQError, SendError

from ....support.instances import client_of

__all__ = [
    "BROKER", "Network", "Outcome", "Process", "Program", "World", "copies", "kind", "kinds", "kinds_of", "message",
    "new_topic", "own", "producing", "stored", "strays", "until",
]  # fmt: skip

BROKER: Final = "broker-a"
"""The one to which faults happen."""
PATIENCE: Final = 60.0

Outcome = dict[str, object]
Program = Callable[..., Awaitable[None]]
"""What runs in a process of its own: ``program(say, *arguments)``, where ``say(line)`` is heard by ``Process.line``."""


class Process(Protocol):
    """A client process."""

    async def line(self) -> str:
        """Returns the next line that the program said."""

    async def kill(self) -> None:
        """Ends the process at once; returns when it has ended."""


class Network(Protocol):
    """What lies between the clients that use ``namesrv`` and the servers. ``reset`` ends every connection to a broker."""

    namesrv: str

    def lose_answers(self, broker: str) -> None: ...
    def silence(self, broker: str) -> None: ...
    def reset(self, broker: str) -> None: ...
    def heal(self, broker: str) -> None: ...


class World(Protocol):
    """``namesrv``: all name servers. ``name_servers``: the address of each. Servers have names: "broker-a", "namesrv-0"."""

    namesrv: str
    name_servers: list[str]

    async def kill(self, name: str) -> None:
        """Ends the server's process as SIGKILL does."""

    async def start(self, name: str) -> None:
        """Starts a server that was killed; returns when the name servers that run route to the brokers that run."""

    async def pause(self, name: str) -> None:
        """Stops the server's process as SIGSTOP does."""

    async def resume(self, name: str) -> None:
        """Continues a paused process."""

    def network(self) -> AbstractAsyncContextManager[Network]:
        """A network that can be disturbed."""

    def process(self, program: Program, *arguments: str) -> AbstractAsyncContextManager[Process]:
        """Runs a program of ``programs.py``; ends it when the block is left."""


def own(world: World | Network) -> dict[str, Any]:
    """Settings of a client that shares nothing with others; a broker that is down stays in its routes."""
    return {"namesrv": world.namesrv, "instance_name": uuid.uuid4().hex, "route_poll_interval": 600.0}


def message(topic: str, name: str = "") -> Message:
    """A message whose body is its name: ``name``, or one that no other has."""
    return Message(topic, (name or uuid.uuid4().hex).encode())


async def kind(call: Awaitable[Any]) -> str:
    """How a call ended: done, and whether after retries; or the error, and what it says of the message."""
    try:
        result = await call
    except RocketMQError as error:
        causes = sorted({type(attempt.error).__name__ for attempt in error.attempts}) if isinstance(error, SendError) else []
        of = f" of {', '.join(causes)}" if causes else ""
        return f"{type(error).__name__}{of}, {'maybe stored' if getattr(error, 'maybe_stored', False) else 'not stored'}"
    return "done" if getattr(result, "attempts", 1) == 1 else "done after retries"


async def kinds(calls: Iterable[Awaitable[Any]]) -> list[str]:
    """The different kinds of several calls made at once."""
    return sorted(set(await asyncio.gather(*[kind(call) for call in calls])))


async def kinds_of(calls: Mapping[str, Awaitable[Any]]) -> dict[str, object]:
    """The kind of each of several calls made at once, by name."""
    return dict(zip(calls, await asyncio.gather(*[kind(call) for call in calls.values()]), strict=True))


async def new_topic(world: World, *, broker: str | None = None, queues: int = 2) -> str:
    topic = f"both-{uuid.uuid4().hex[:12]}"
    async with Admin(**own(world)) as admin:
        await admin.create_topic(topic, queues=queues, broker=broker)
    return topic


@asynccontextmanager
async def producing(world: World | Network, topic: str, **options: Any) -> AsyncIterator[Producer]:
    """A producer that has sent a message to each queue of the topic."""
    async with Producer("both", **own(world), **options) as producer:
        for queue in await producer.fetch_publish_queues(topic):
            await producer.send(message(topic, "warm"), queue=queue)
        yield producer


async def stored(world: World, topic: str) -> list[MessageExt]:
    """All that a reader finds in the topic."""
    async with PullConsumer("reads", **own(world)) as consumer:
        return [each async for each in consumer.read(topic)]


async def copies(world: World, topic: str) -> Counter[str]:
    """How often each message is stored, those of ``producing`` excepted."""
    names = [each.body.decode() for each in await stored(world, topic)]
    return Counter(name for name in names if name != "warm")


async def strays(producer: Producer) -> int:
    """Number of answers that came after the end of their calls."""
    return sum(connection.strays for connection in (await client_of(producer)).pool.connections)


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str, *, step: float = 0.05) -> None:
    """Waits until the condition is met. Fails, and says ``what`` was waited for, after a minute."""
    deadline = monotonic() + PATIENCE
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        assert monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(step)
