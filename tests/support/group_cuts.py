"""Group consumers whose broker's connection is cut inside pulls, commits, locks and give-backs, or inside their answers.

The same runs on a real broker (``tests/cluster/test_group_cuts_real.py``, ``benchmarks/consumer_runs.py``) and in the simulation
(``tests/consumer/group/test_cuts.py``).
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import msgspec

from rmq_async import Admin, Consumer, Message, MessageExt, MessageQueue, Producer, PullConsumer, Retry
from rmq_protocol.constants import RequestCode

from .frame_cuts import FrameClusterProxy, FrameProxy, Place, field_starts

__all__ = ["CUTS", "WAYS", "Cuts", "bytes_of", "cut_each", "fields_of", "named_while_cut"]

CUTS: Final = {
    "pull": RequestCode.PULL_MESSAGE,
    "commit": RequestCode.UPDATE_CONSUMER_OFFSET,
    "lock": RequestCode.LOCK_BATCH_MQ,
    "give-back": RequestCode.CONSUMER_SEND_MSG_BACK,
}
WAYS: Final = ("to_server", "to_client")
WITHIN: Final = 30.0
"""Seconds from a cut, which is over at once, until a message sent afterwards is handled, at most."""
SECOND_COPIES: Final = 3.0
"""Seconds until messages that were given back twice have come twice."""
SENT_WITHIN: Final = 60.0


def bytes_of(frame: bytes) -> list[Place]:
    """Returns the places before each byte of a frame, and the one behind the last."""
    return [partial(_at_byte, at) for at in range(len(frame) + 1)]


def fields_of(frame: bytes) -> list[Place]:
    """Returns the places before each field of a frame, and the one behind the last."""
    return [partial(_at_field, number) for number in range(len(field_starts(frame)))]


def _at_byte(at: int, frame: bytes) -> int:
    return at


def _at_field(number: int, frame: bytes) -> int:
    starts = field_starts(frame)
    return starts[min(number, len(starts) - 1)]


class Cuts(msgspec.Struct):
    """What the cuts of one kind have shown. ``cuts``: that took effect. ``slowest``: the longest time from a cut until a message
    that was sent afterwards was handled, in seconds. ``repeated``: handler calls that returned beyond the first of their message;
    ``unanswered``: give-backs that arrived without an answer, each of which may repeat its message once. ``behind``: messages that
    the group's committed offset leaves to the next owner."""

    what: str
    way: str
    cuts: int
    slowest: float
    sent: int
    lost: int
    repeated: int
    unanswered: int
    behind: int

    @property
    def kept(self) -> bool:
        return not self.lost and not self.behind and self.repeated <= self.unanswered and self.slowest <= WITHIN


class Handled:
    """A handler, and what it was called with. A message whose body begins with "fails" raises at its first call."""

    def __init__(self) -> None:
        self.bodies: Counter[bytes] = Counter()
        self.here = 0
        """Second attempts that the member has made without its broker."""
        self.grown = asyncio.Event()

    async def __call__(self, message: MessageExt) -> None:
        if message.body.startswith(b"fails") and not message.reconsume_times:
            raise ValueError("as its body says")
        self.bodies[message.body] += 1
        self.here += message.reconsume_times > 0 and not message.queue.topic.startswith("%RETRY%")
        self.grown.set()

    async def has(self, *bodies: bytes) -> None:
        async with asyncio.timeout(SENT_WITHIN):
            while not all(map(self.bodies.__contains__, bodies)):
                self.grown.clear()
                await self.grown.wait()


class Run:
    """One group behind proxies, on one queue. The producer's connections do not go through them."""

    def __init__(self, namesrv: str, proxies: FrameClusterProxy, proxy: FrameProxy, queue: MessageQueue, producer: Producer):
        self.name = queue.topic
        self.namesrv = namesrv
        self.proxies = proxies
        self.proxy = proxy
        self.queue = queue
        self.producer = producer
        self.handled = Handled()
        self.sent: list[bytes] = []
        self.failing = 0

    def consumer(self) -> Consumer:
        consumer = Consumer(
            self.name, namesrv=self.proxies.namesrv, instance_name=self.name, start_from="earliest", commit_interval=0.05,
            retry=Retry(delays=(1,)), handover_timeout=3.0,
        )  # fmt: skip
        consumer.subscribe(self.name, self.handled)
        return consumer

    async def send(self, kind: str = "good") -> bytes:
        self.failing += kind == "fails"
        body = b"%s-%d" % (kind.encode(), len(self.sent))
        await self.producer.send(Message(self.name, body), queue=self.queue)
        self.sent.append(body)
        return body

    async def behind(self) -> int:
        async with PullConsumer(self.name, namesrv=self.namesrv) as reader:
            return await reader.max_offset(self.queue) - (await reader.committed(self.queue) or 0)


@asynccontextmanager
async def opened(namesrv: str, broker: str) -> AsyncIterator[Run]:
    name = f"cuts-{uuid.uuid4().hex[:12]}"
    async with (
        FrameClusterProxy(namesrv) as proxies,
        Admin(namesrv=namesrv, instance_name=name) as admin,
        Producer(f"sender-{name}", namesrv=namesrv, instance_name=name) as producer,
    ):
        await admin.create_topic(name, queues=1, broker=broker)
        (queue,) = await producer.fetch_publish_queues(name)
        yield Run(namesrv, proxies, proxies.broker(broker), queue, producer)


async def _until(condition: Callable[[], object], within: float = SENT_WITHIN) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


async def cut_each(namesrv: str, broker: str, what: str, way: str, places: Callable[[bytes], Sequence[Place]]) -> Cuts:
    """Cuts the connection once at each place, one after the other. ``places``: of a frame like those that are to be cut.

    A lock is requested when a member starts; so each cut inside one has a start of its own.
    """
    now = asyncio.get_running_loop().time
    async with opened(namesrv, broker) as run:
        proxy, slowest = run.proxy, 0.0
        proxy.watch(CUTS[what], way)
        consumer, unanswered = run.consumer(), 0
        await consumer.start()
        try:
            await run.handled.has(await run.send("fails" if what == "give-back" else "good"))
            await _until(lambda: proxy.seen)
            assert proxy.seen is not None
            chosen = places(proxy.seen)
            for number, place in enumerate(chosen):
                if what == "lock":
                    await consumer.stop()
                proxy.cut_at(place, reset=number % 2 == 1)
                if what == "lock":
                    await consumer.start()
                else:
                    await run.send("fails" if what == "give-back" else "good")
                made = number + 1
                while what == "give-back" and proxy.injected["cut"] < made:
                    with suppress(TimeoutError):
                        await _until(lambda made=made: proxy.injected["cut"] >= made, 5.0)
                        break
                    await run.send(
                        "fails"
                    )  # the last one was handled here again: the broker had taken nothing back for a moment
                await _until(lambda made=made: proxy.injected["cut"] >= made)
                cut_at = now()
                await run.handled.has(await run.send())
                slowest = max(slowest, now() - cut_at)
            await run.handled.has(*run.sent)
            unanswered = proxy.whole - (run.failing - run.handled.here) if what == "give-back" else 0
            await asyncio.sleep(SECOND_COPIES if unanswered else 0.0)
        finally:
            await consumer.stop()
        return Cuts(
            what=what,
            way=way,
            cuts=proxy.injected["cut"],
            slowest=round(slowest, 3),
            sent=len(run.sent),
            lost=sum(body not in run.handled.bodies for body in run.sent),
            repeated=run.handled.bodies.total() - len(run.handled.bodies),
            unanswered=unanswered,
            behind=await run.behind(),
        )


async def named_while_cut(namesrv: str, broker: str, what: str, wanted: str, place: Place) -> Any:
    """Cuts each request of the kind until ``health()`` names the problem ``wanted``, and returns that problem.

    Then nothing is cut any more, and a message that was sent meanwhile is handled within WITHIN seconds, and no problem is left.
    """
    async with opened(namesrv, broker) as run:
        run.proxy.watch(CUTS[what], "to_server")
        consumer = run.consumer()
        if what == "lock":
            run.proxy.cut_at(place, lasting=True)
        starting = asyncio.create_task(consumer.start())
        try:
            if what != "lock":
                await starting
                await run.handled.has(await run.send())
                run.proxy.cut_at(place, lasting=True)
            body = await run.send("fails" if what == "give-back" else "good")
            await _until(lambda: [each for each in consumer.health().problems if each.code == wanted])
            (found, *_) = [each for each in consumer.health().problems if each.code == wanted]
            run.proxy.mend()
            async with asyncio.timeout(WITHIN):
                await starting
                await run.handled.has(body)
                await _until(lambda: not consumer.health().problems)
            return found
        finally:
            await starting
            await consumer.stop()
