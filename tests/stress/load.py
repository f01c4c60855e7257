"""Callers of producers: every way to send, with keys, queues, selectors, batches, transactions, cancelled at random moments."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Final

from rmq_async import (
    BatchSendResult,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    RocketMQError,
    SendResult,
    TransactionProducer,
    TransactionStatus,
)

from .account import Account, Entry, body_of

__all__ = ["PURPOSE", "Load"]

PURPOSE: Final = "raised on purpose"
KEYS: Final = 40
TIMEOUTS: Final = (0.05, 0.3, 1.0, 3.0, 3.0, 3.0, 8.0)


class Load:
    """Calls of one producer until ``until``. ``topics``: free of order, and with order; ``queues``: of the latter."""

    def __init__(
        self, account: Account, name: str, producer: Producer, topics: tuple[str, str], seed: str, until: float
    ) -> None:
        self.name = name
        self.producer = producer
        self.account = account
        self.free, self.ordered = topics
        self.draw = random.Random(seed)
        self.until = until
        self.asked = ""
        """The topic of requests, where somebody replies."""
        self.statuses: dict[str, TransactionStatus] = {}
        self.queues: Sequence[MessageQueue] = ()
        ways: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.send, 30), (self.send_ordered, 25), (self.send_async, 15), (self.async_ordered, 10), (self.oneway, 6),
            (self.batch, 5), (self.batch_async, 2), (self.large, 2), (self.delayed, 1), (self.burst, 1),
        ]  # fmt: skip
        if isinstance(producer, TransactionProducer):
            ways.append((self.transaction, 10))
        else:
            ways.append((self.request, 2))
        self.ways = [way for way, weight in ways for _ in range(weight)]

    async def run(self, callers: int) -> None:
        await asyncio.gather(*[self.caller() for _ in range(callers)])

    async def caller(self) -> None:
        while monotonic() < self.until:
            await self.draw.choice(self.ways)()
            running = self.producer.state.value == "running"
            await asyncio.sleep(self.draw.expovariate(1 / 0.01) if running else 0.1)

    # -- what is sent

    def entry(self, mode: str, topic: str, turn: int, **facts: Any) -> tuple[Entry, Message]:
        draw = self.draw
        size = facts.pop("size", None) or draw.choice((12, 40, 128, 600, 3000))
        message_facts: dict[str, Any] = {}
        if draw.random() < 0.6:
            message_facts["tags"] = draw.choice(("paid", "open", "void"))
        if draw.random() < 0.6:
            message_facts["keys"] = tuple(f"k-{draw.randrange(10_000)}" for _ in range(draw.randint(1, 2)))
        if draw.random() < 0.5:
            message_facts["properties"] = {"shop": draw.choice(("eu", "us", "Zürich")), "trace": f"{draw.random():.6f}"}
        if draw.random() < 0.1:
            message_facts["flag"] = draw.randrange(1, 1 << 20)
        extra = facts.pop("message", {})
        entry = self.account.open(mode, self.name, topic, size, turn, **facts, **message_facts)
        entry.size = max(size, len(f"{entry.number}:"))
        return entry, Message(topic, body_of(entry.number, entry.size), **message_facts, **extra)

    def order(self) -> dict[str, Any]:
        """One of the ways to choose a queue in advance."""
        key = f"key-{self.draw.randrange(KEYS)}"
        way = self.draw.randrange(4)
        if way == 0:
            return {"key": key}
        if way == 1 and self.queues:
            return {"queue": self.draw.choice(self.queues)}
        if way == 2:
            return {"selector": _by_crc, "key": key}
        return {"sharding_key": key}

    # -- how calls end

    async def _call(self, entries: list[Entry], call: Callable[[float], Awaitable[Any]]) -> Any:
        """Runs one call with a time of its own and, at times, cancels it; writes down how it ended."""
        draw = self.draw
        timeout = draw.choice(TIMEOUTS)
        cancel_after = draw.choice((0.0, 0.001, 0.01, 0.05, 0.3)) if draw.random() < 0.06 else None
        for entry in entries:
            entry.timeout, entry.started = timeout, monotonic()
        task = asyncio.ensure_future(call(timeout))
        handle = None if cancel_after is None else asyncio.get_running_loop().call_later(cancel_after, task.cancel)
        try:
            result = await task
        except asyncio.CancelledError:
            self.ended(entries, "cancelled", "CancelledError", maybe_stored=True)
        except RocketMQError as error:
            self.ended(entries, "failed", repr(error)[:120], maybe_stored=error.maybe_stored)
        except Exception as error:  # noqa: BLE001 - the rule is that there is no other
            self.ended(entries, "failed", repr(error)[:120], maybe_stored=True)
            self.account.reports.append(f"{entries[0].name} raised what is no RocketMQError: {error!r}")
        else:
            return result
        finally:
            if handle is not None:
                handle.cancel()
        return None

    def ended(self, entries: list[Entry], end: str, error: str, *, maybe_stored: bool) -> None:
        for entry in entries:
            entry.ended, entry.end, entry.error, entry.maybe_stored = monotonic(), end, error, maybe_stored

    def acked(self, entry: Entry, result: SendResult) -> None:
        entry.ended, entry.end, entry.attempts, entry.msg_id = monotonic(), "acked", result.attempts, result.msg_id
        entry.place = (result.queue.broker_name, result.queue.queue_id, result.queue_offset)

    def batch_acked(self, entries: list[Entry], result: BatchSendResult) -> None:
        for entry, single in zip(entries, result.results, strict=True):
            self.acked(entry, single)
            entry.attempts = result.attempts

    # -- the ways

    async def send(self, mode: str = "send", **facts: Any) -> None:
        entry, message = self.entry(mode, self.free, self.account.turn(self.name), **facts)
        result = await self._call([entry], lambda timeout: self.at_default(self.producer.send, message, entry, timeout))
        if result is not None:
            self.acked(entry, result)

    async def at_default(self, send: Callable[..., Awaitable[Any]], message: Message, entry: Entry, timeout: float) -> Any:
        """Without a timeout of its own at times, which is another way through the producer."""
        if timeout == 3.0:
            return await send(message)
        return await send(message, timeout=timeout)

    async def send_ordered(self, **facts: Any) -> None:
        order = self.order()
        sharding = order.pop("sharding_key", None)
        if sharding:
            facts["message"] = {"sharding_key": sharding}

        async def call(timeout: float) -> SendResult:
            entry.turn = self.account.turn(self.name)  # the order is that of the calls
            return await self.producer.send(message, timeout=timeout, **order)

        entry, message = self.entry("send-ordered", self.ordered, 0, ordered=True, **facts)
        result = await self._call([entry], call)
        if result is not None:
            self.acked(entry, result)

    async def send_async(self, *, ordered: bool = False) -> None:
        order: dict[str, Any] = self.order() if ordered else {}
        sharding = order.pop("sharding_key", None)
        facts: dict[str, Any] = {"message": {"sharding_key": sharding}} if sharding else {}
        mode, topic = ("async-ordered", self.ordered) if ordered else ("async", self.free)
        entry, message = self.entry(mode, topic, 0, ordered=ordered, **facts)
        raises = self.draw.random() < 0.01

        def success(result: SendResult) -> None:
            entry.calls.append("success")
            self.acked(entry, result)
            if raises:
                raise ValueError(PURPOSE)

        def failure(error: BaseException) -> None:
            entry.calls.append("error")
            maybe = error.maybe_stored if isinstance(error, RocketMQError) else True
            end = "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
            self.ended([entry], end, repr(error)[:120], maybe_stored=maybe)

        async def call(timeout: float) -> Any:
            entry.turn = self.account.turn(self.name)
            accepted = await self.producer.send_async(message, on_success=success, on_error=failure, timeout=timeout, **order)
            if self.draw.random() < 0.05:
                asyncio.get_running_loop().call_later(self.draw.random() * 0.05, accepted.cancel)
            result = await accepted
            if entry.calls != ["success"]:
                self.account.reports.append(f"{entry.name} resumed before its callback: {entry.calls}")
            return result

        await self._call([entry], call)
        if not entry.calls:
            entry.end = "refused" if entry.end == "failed" else entry.end
            if entry.end == "cancelled":  # before it was accepted
                entry.calls.append("none")

    async def async_ordered(self) -> None:
        await self.send_async(ordered=True)

    async def oneway(self) -> None:
        ordered = self.draw.random() < 0.3
        order: dict[str, Any] = {"key": f"key-{self.draw.randrange(KEYS)}"} if ordered else {}
        entry, message = self.entry("oneway", self.ordered if ordered else self.free, self.account.turn(self.name))

        async def call(timeout: float) -> bool:
            await self.producer.send_oneway(message, timeout=timeout, **order)
            return True

        if await self._call([entry], call):
            entry.end, entry.ended = "sent", monotonic()

    def batch_of(self, mode: str) -> tuple[list[Entry], list[Message], dict[str, Any]]:
        ordered = bool(self.queues) and self.draw.random() < 0.5
        topic = self.ordered if ordered else self.free
        pairs = [self.entry(mode, topic, 0, ordered=ordered) for _ in range(self.draw.randint(1, 20))]
        return [e for e, _ in pairs], [m for _, m in pairs], {"queue": self.draw.choice(self.queues)} if ordered else {}

    async def batch(self) -> None:
        entries, messages, order = self.batch_of("batch")

        async def call(timeout: float) -> BatchSendResult:
            turn = self.account.turn(self.name)
            for entry in entries:
                entry.turn = turn
            return await self.producer.send_batch(messages, timeout=timeout, **order)

        result = await self._call(entries, call)
        if result is not None:
            self.batch_acked(entries, result)

    async def batch_async(self) -> None:
        entries, messages, order = self.batch_of("batch-async")

        async def call(timeout: float) -> BatchSendResult:
            turn = self.account.turn(self.name)
            for entry in entries:
                entry.turn = turn
            return await (await self.producer.send_batch_async(messages, timeout=timeout, **order))

        result = await self._call(entries, call)
        if result is not None:
            self.batch_acked(entries, result)

    async def large(self) -> None:
        size = self.draw.choice((5_000, 40_000, 300_000))
        await (self.send(size=size) if self.draw.random() < 0.5 else self.send_ordered(size=size))

    async def delayed(self) -> None:
        await self.send("delayed", unordered_place=True, message={"delay_level": 1})

    async def burst(self) -> None:
        ways = (self.send, self.send_ordered, self.send_async, self.async_ordered)
        await asyncio.gather(*[self.draw.choice(ways)() for _ in range(self.draw.choice((50, 300)))])

    async def request(self) -> None:
        entry, message = self.entry("request", self.asked, self.account.turn(self.name), unordered_place=True)
        reply = await self._call([entry], lambda timeout: self.producer.request(message, timeout=timeout))
        if reply is not None:
            entry.ended, entry.end, entry.attempts = monotonic(), "acked", 1 << 20
            if reply.body != b"re:%d" % entry.number:
                self.account.reports.append(f"{entry.name} was replied to with {reply.body[:40]!r}")

    # -- transactions

    async def transaction(self) -> None:
        producer = self.producer
        assert isinstance(producer, TransactionProducer)
        entry, message = self.entry("transaction", self.free, self.account.turn(self.name), unordered_place=True, grace=3.0)
        status = self.draw.choice((TransactionStatus.COMMIT, TransactionStatus.COMMIT, TransactionStatus.ROLLBACK))
        result = await self._call([entry], lambda timeout: producer.send_in_transaction(message, status, timeout=timeout))
        if result is not None:
            self.acked(entry, result)
            entry.rolled_back = result.local_status is not TransactionStatus.COMMIT

    def execute(self, message: Message, status: Any) -> TransactionStatus:
        decided: TransactionStatus = status
        self.statuses[message.body.decode().partition(":")[0]] = decided
        return decided

    def check(self, message: MessageExt) -> TransactionStatus:
        return self.statuses.get(message.body.decode().partition(":")[0], TransactionStatus.ROLLBACK)


def _by_crc(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    return queues[zlib.crc32(key.encode()) % len(queues)]
