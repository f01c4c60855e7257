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
        self._account = account
        self._free, self._ordered = topics
        self._draw = random.Random(seed)
        self._until = until
        self.asked = ""
        """The topic of requests, where somebody replies."""
        self._statuses: dict[str, TransactionStatus] = {}
        self.queues: Sequence[MessageQueue] = ()
        ways: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._send, 30), (self._send_ordered, 25), (self._send_async, 15), (self._async_ordered, 10), (self._oneway, 6),
            (self._batch, 5), (self._batch_async, 2), (self._large, 2), (self._delayed, 1), (self._burst, 1),
        ]  # fmt: skip
        if isinstance(producer, TransactionProducer):
            ways.append((self._transaction, 10))
        else:
            ways.append((self._request, 2))
        self._ways = [way for way, weight in ways for _ in range(weight)]

    async def run(self, callers: int) -> None:
        await asyncio.gather(*[self._caller() for _ in range(callers)])

    async def _caller(self) -> None:
        while monotonic() < self._until:
            await self._draw.choice(self._ways)()
            running = self.producer.state.value == "running"
            await asyncio.sleep(self._draw.expovariate(1 / 0.01) if running else 0.1)

    # -- what is sent

    def _entry(self, mode: str, topic: str, turn: int, **facts: Any) -> tuple[Entry, Message]:
        draw = self._draw
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
        entry = self._account.open(mode, self.name, topic, size, turn, **facts, **message_facts)
        entry.size = max(size, len(f"{entry.number}:"))
        return entry, Message(topic, body_of(entry.number, entry.size), **message_facts, **extra)

    def _order(self) -> dict[str, Any]:
        """One of the ways to choose a queue in advance."""
        key = f"key-{self._draw.randrange(KEYS)}"
        way = self._draw.randrange(4)
        if way == 0:
            return {"key": key}
        if way == 1 and self.queues:
            return {"queue": self._draw.choice(self.queues)}
        if way == 2:
            return {"selector": _by_crc, "key": key}
        return {"sharding_key": key}

    # -- how calls end

    async def _call(self, entries: list[Entry], call: Callable[[float], Awaitable[Any]]) -> Any:
        """Runs one call with a time of its own and, at times, cancels it; writes down how it ended."""
        draw = self._draw
        timeout = draw.choice(TIMEOUTS)
        cancel_after = draw.choice((0.0, 0.001, 0.01, 0.05, 0.3)) if draw.random() < 0.06 else None
        for entry in entries:
            entry.timeout, entry.started = timeout, monotonic()
        task = asyncio.ensure_future(call(timeout))
        handle = None if cancel_after is None else asyncio.get_running_loop().call_later(cancel_after, task.cancel)
        try:
            result = await task
        except asyncio.CancelledError:
            self._ended(entries, "cancelled", "CancelledError", maybe_stored=True)
        except RocketMQError as error:
            self._ended(entries, "failed", repr(error)[:120], maybe_stored=error.maybe_stored)
        except Exception as error:  # noqa: BLE001 - the rule is that there is no other
            self._ended(entries, "failed", repr(error)[:120], maybe_stored=True)
            self._account.reports.append(f"{entries[0].name} raised what is no RocketMQError: {error!r}")
        else:
            return result
        finally:
            if handle is not None:
                handle.cancel()
        return None

    def _ended(self, entries: list[Entry], end: str, error: str, *, maybe_stored: bool) -> None:
        for entry in entries:
            entry.ended, entry.end, entry.error, entry.maybe_stored = monotonic(), end, error, maybe_stored

    def _acked(self, entry: Entry, result: SendResult) -> None:
        entry.ended, entry.end, entry.attempts, entry.msg_id = monotonic(), "acked", result.attempts, result.msg_id
        entry.place = (result.queue.broker_name, result.queue.queue_id, result.queue_offset)

    def _batch_acked(self, entries: list[Entry], result: BatchSendResult) -> None:
        for entry, single in zip(entries, result.results, strict=True):
            self._acked(entry, single)
            entry.attempts = result.attempts

    # -- the ways

    async def _send(self, mode: str = "send", **facts: Any) -> None:
        entry, message = self._entry(mode, self._free, self._account.turn(self.name), **facts)
        result = await self._call([entry], lambda timeout: self._at_default(self.producer.send, message, entry, timeout))
        if result is not None:
            self._acked(entry, result)

    async def _at_default(self, send: Callable[..., Awaitable[Any]], message: Message, entry: Entry, timeout: float) -> Any:
        """Without a timeout of its own at times, which is another way through the producer."""
        if timeout == 3.0:
            return await send(message)
        return await send(message, timeout=timeout)

    async def _send_ordered(self, **facts: Any) -> None:
        order = self._order()
        sharding = order.pop("sharding_key", None)
        if sharding:
            facts["message"] = {"sharding_key": sharding}

        async def call(timeout: float) -> SendResult:
            entry.turn = self._account.turn(self.name)  # the order is that of the calls
            return await self.producer.send(message, timeout=timeout, **order)

        entry, message = self._entry("send-ordered", self._ordered, 0, ordered=True, **facts)
        result = await self._call([entry], call)
        if result is not None:
            self._acked(entry, result)

    async def _send_async(self, *, ordered: bool = False) -> None:
        order: dict[str, Any] = self._order() if ordered else {}
        sharding = order.pop("sharding_key", None)
        facts: dict[str, Any] = {"message": {"sharding_key": sharding}} if sharding else {}
        mode, topic = ("async-ordered", self._ordered) if ordered else ("async", self._free)
        entry, message = self._entry(mode, topic, 0, ordered=ordered, **facts)
        raises = self._draw.random() < 0.01

        def success(result: SendResult) -> None:
            entry.calls.append("success")
            self._acked(entry, result)
            if raises:
                raise ValueError(PURPOSE)

        def failure(error: BaseException) -> None:
            entry.calls.append("error")
            maybe = error.maybe_stored if isinstance(error, RocketMQError) else True
            end = "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
            self._ended([entry], end, repr(error)[:120], maybe_stored=maybe)

        async def call(timeout: float) -> Any:
            entry.turn = self._account.turn(self.name)
            accepted = await self.producer.send_async(message, on_success=success, on_error=failure, timeout=timeout, **order)
            if self._draw.random() < 0.05:
                asyncio.get_running_loop().call_later(self._draw.random() * 0.05, accepted.cancel)
            result = await accepted
            if entry.calls != ["success"]:
                self._account.reports.append(f"{entry.name} resumed before its callback: {entry.calls}")
            return result

        await self._call([entry], call)
        if not entry.calls:
            entry.end = "refused" if entry.end == "failed" else entry.end
            if entry.end == "cancelled":  # before it was accepted
                entry.calls.append("none")

    async def _async_ordered(self) -> None:
        await self._send_async(ordered=True)

    async def _oneway(self) -> None:
        ordered = self._draw.random() < 0.3
        order: dict[str, Any] = {"key": f"key-{self._draw.randrange(KEYS)}"} if ordered else {}
        entry, message = self._entry("oneway", self._ordered if ordered else self._free, self._account.turn(self.name))

        async def call(timeout: float) -> bool:
            await self.producer.send_oneway(message, timeout=timeout, **order)
            return True

        if await self._call([entry], call):
            entry.end, entry.ended = "sent", monotonic()

    def _batch_of(self, mode: str) -> tuple[list[Entry], list[Message], dict[str, Any]]:
        ordered = bool(self.queues) and self._draw.random() < 0.5
        topic = self._ordered if ordered else self._free
        pairs = [self._entry(mode, topic, 0, ordered=ordered) for _ in range(self._draw.randint(1, 20))]
        return [e for e, _ in pairs], [m for _, m in pairs], {"queue": self._draw.choice(self.queues)} if ordered else {}

    async def _batch(self) -> None:
        entries, messages, order = self._batch_of("batch")

        async def call(timeout: float) -> BatchSendResult:
            turn = self._account.turn(self.name)
            for entry in entries:
                entry.turn = turn
            return await self.producer.send_batch(messages, timeout=timeout, **order)

        result = await self._call(entries, call)
        if result is not None:
            self._batch_acked(entries, result)

    async def _batch_async(self) -> None:
        entries, messages, order = self._batch_of("batch-async")

        async def call(timeout: float) -> BatchSendResult:
            turn = self._account.turn(self.name)
            for entry in entries:
                entry.turn = turn
            return await (await self.producer.send_batch_async(messages, timeout=timeout, **order))

        result = await self._call(entries, call)
        if result is not None:
            self._batch_acked(entries, result)

    async def _large(self) -> None:
        size = self._draw.choice((5_000, 40_000, 300_000))
        await (self._send(size=size) if self._draw.random() < 0.5 else self._send_ordered(size=size))

    async def _delayed(self) -> None:
        await self._send("delayed", unordered_place=True, message={"delay_level": 1})

    async def _burst(self) -> None:
        ways = (self._send, self._send_ordered, self._send_async, self._async_ordered)
        await asyncio.gather(*[self._draw.choice(ways)() for _ in range(self._draw.choice((50, 300)))])

    async def _request(self) -> None:
        entry, message = self._entry("request", self.asked, self._account.turn(self.name), unordered_place=True)
        reply = await self._call([entry], lambda timeout: self.producer.request(message, timeout=timeout))
        if reply is not None:
            entry.ended, entry.end, entry.attempts = monotonic(), "acked", 1 << 20
            if reply.body != b"re:%d" % entry.number:
                self._account.reports.append(f"{entry.name} was replied to with {reply.body[:40]!r}")

    # -- transactions

    async def _transaction(self) -> None:
        producer = self.producer
        assert isinstance(producer, TransactionProducer)
        entry, message = self._entry("transaction", self._free, self._account.turn(self.name), unordered_place=True, grace=3.0)
        status = self._draw.choice((TransactionStatus.COMMIT, TransactionStatus.COMMIT, TransactionStatus.ROLLBACK))
        result = await self._call([entry], lambda timeout: producer.send_in_transaction(message, status, timeout=timeout))
        if result is not None:
            self._acked(entry, result)
            entry.rolled_back = result.local_status is not TransactionStatus.COMMIT

    def execute(self, message: Message, status: Any) -> TransactionStatus:
        decided: TransactionStatus = status
        self._statuses[message.body.decode().partition(":")[0]] = decided
        return decided

    def check(self, message: MessageExt) -> TransactionStatus:
        return self._statuses.get(message.body.decode().partition(":")[0], TransactionStatus.ROLLBACK)


def _by_crc(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    return queues[zlib.crc32(key.encode()) % len(queues)]
