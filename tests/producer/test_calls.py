"""What the client costs: Python functions called for one message, counted, with every feature there and none switched on.

The server runs in another thread, which the counting does not see, and whose answers are waited for. Times would show less: these
figures are the same everywhere.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest

import rmq_async
import rmq_protocol
from rmq_async import Credentials, Hook, Message, MessageQueue, Producer, SendContext
from rmq_async.testing.threaded import ThreadedRocketMQ

from ..support.calls import counted
from ..support.fakes import TOPIC
from .support import message, messages

OURS = (os.path.dirname(rmq_async.__file__), os.path.dirname(rmq_protocol.__file__))
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
ROUNDS, SENDS = 3, 200
LOOSE = 0.9
"""What happens now and then, the more often the slower the machine: a page of ids is turned, windows of one-way messages are
answered. One more call for each message exceeds it."""

Way = Callable[[Producer], Awaitable[Any]]


SHARDS = itertools.cycle([f"customer-{number}" for number in range(1000)])


def real() -> Message:
    """A message as services send it."""
    return message(b"x" * 1024, tags="paid", keys="order-17", properties={"shop": "eu-west-1", "schema": "orders/3"})


async def deferred(sender: Producer) -> None:
    await (await sender.send_async(message()))


WAYS: dict[str, tuple[Way, float]] = {  # and the calls that it may take; a change that raises one says so in its commit message
    "send": (lambda sender: sender.send(message()), 9.2),
    "send with tags and a key": (lambda sender: sender.send(message(tags="t", keys="k")), 12.2),
    "send of a real message": (lambda sender: sender.send(real()), 13.2),
    "send with a sharding key": (lambda sender: sender.send(message(sharding_key=next(SHARDS))), 33.2),
    "send by key": (lambda sender: sender.send(message(), key=1), 41.2),
    "send to a queue": (lambda sender: sender.send(message(), queue=QUEUE), 39.2),
    "send_async": (deferred, 28.2),
    "send_oneway": (lambda sender: sender.send_oneway(message()), 9.2),
    "send_batch of one": (lambda sender: sender.send_batch([message()]), 33.2),
    "send_batch of 32": (lambda sender: sender.send_batch(messages(32)), 64.7),
}


SIGNED: dict[str, tuple[Way, float]] = {
    "signed send": (lambda sender: sender.send(message()), 11.2),
    "signed send of a real message": (lambda sender: sender.send(real()), 13.2),
}


class Passing(Hook):
    def before_send(self, context: SendContext) -> None:
        pass

    def after_send(self, context: SendContext) -> None:
        pass


WATCHED: dict[str, tuple[Way, float]] = {
    "send with a hook": (lambda sender: sender.send(message()), 25.2),
    "send with traces": (lambda sender: sender.send(message()), 34.2),
}
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"credentials": Credentials("alice", "her secret")} for name in SIGNED},
    "send with a hook": {"hooks": [Passing()]},
    "send with traces": {"trace": True},
}


@pytest.mark.parametrize("name", [*WAYS, *SIGNED, *WATCHED])
async def test_calls_of_one_message(name: str) -> None:
    way, limit = {**WAYS, **SIGNED, **WATCHED}[name]
    options = OPTIONS.get(name, {})
    with ThreadedRocketMQ() as server:
        async with Producer("group", namesrv=server.namesrv, **options) as sender:
            figures = []
            for _ in range(ROUNDS):
                for _ in range(20):
                    await way(sender)
                await sender.flush()
                with counted() as calls:
                    for _ in range(SENDS):
                        await way(sender)
                figures.append(calls.count / SENDS)
        assert server.messages(TOPIC)
    print(f"{name}: {min(figures):.2f} calls, the limit is {limit}")
    assert min(figures) <= limit + LOOSE
    if sys.version_info < (3, 12):  # later ones make a comprehension without a call
        assert min(figures) >= limit - 3, "less than the limit says: lower it"


GATHERED, GATHERED_LIMIT = 64, 4.7


async def test_calls_of_one_message_that_gathers_with_others() -> None:
    """Adaptive batching, 64 calls at a time."""
    with ThreadedRocketMQ() as server:
        async with Producer("group", namesrv=server.namesrv, batching=True) as sender:
            figures = []
            for _ in range(3 * ROUNDS):
                with counted() as calls:
                    await asyncio.gather(*[sender.send(message()) for _ in range(GATHERED)])
                figures.append(calls.count / GATHERED)
    print(f"adaptive send: {min(figures):.2f} calls, the limit is {GATHERED_LIMIT}")
    assert GATHERED_LIMIT - 0.6 <= min(figures) <= GATHERED_LIMIT + LOOSE


def test_the_counting_counts() -> None:
    with counted() as calls:
        message(tags="t")
        len("x")
    assert calls.count >= 2  # checks of a message that has more than a body


async def test_send_with_tags_and_a_key_passes_few_files() -> None:
    """The way of the message that services send: which files a maintainer reads to follow it, and how deep the calls nest."""
    files: set[str] = set()
    depths: list[int] = []

    def is_ours(frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(OURS)

    def seen(frame: FrameType | None, event: str, argument: object) -> None:
        if event == "call" and frame is not None and is_ours(frame):
            files.add(frame.f_code.co_filename)
            depth = 0
            while frame is not None:
                depth += is_ours(frame)
                frame = frame.f_back
            depths.append(depth)

    with ThreadedRocketMQ() as server:
        async with Producer("group", namesrv=server.namesrv) as sender:
            for _ in range(20):
                await sender.send(message(tags="t", keys="k"))
            item = message(tags="t", keys="k")
            sys.setprofile(seen)
            try:
                await sender.send(item)
            finally:
                sys.setprofile(None)
    assert (len(files) <= 8, max(depths) <= 6) == (True, True), (sorted(files), max(depths))


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions lay frames out in another way")
def test_a_send_is_small_enough_for_the_allocator_of_objects() -> None:
    call = Producer("group").send(message())
    call.close()
    assert sys.getsizeof(call) <= 512
