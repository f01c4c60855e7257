"""One broker of two that takes no messages back: ``python benchmarks/frozen_broker.py [--trouble frozen,drained] [--seconds 60]``.

Two brokers of 5.5.0 hold more messages than can be handled meanwhile; handlers take 0.2 s, eight at a time, and 5 % fail. Broker-a
is stopped by SIGSTOP, or drained by brokerPermission=4, for so many seconds, and the messages of broker-b that are handled then are
compared with those of the same run without trouble. Afterwards all must be handled or dead-lettered. ``--check`` fails below 0.9 of
the rate, after a loss, and where a call by hand took 5 s. Needs the extra ``test`` and what RealCluster needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rmq_async import Admin, Batch, Consumer, DeadLetter, Message, MessageExt, MessageQueue, Producer, Retry
from rmq_async.testing.cluster import DEFAULT_VERSION, RealCluster
from tests.cluster.test_draining import set_permission

SHAPES = ("single", "batch", "key", "hand", "exec")
TROUBLES = ("frozen", "drained")
TOPIC, QUEUES, SLOTS, WORK = "Frozen", 4, 8, 0.2
LEAST, LONGEST_CALL = 0.9, 5.0
BEFORE, AFTER = 4.0, 180.0


@dataclass
class Handled:
    """What one run has handled. ``work``: seconds of a handler. ``calls``: seconds of calls by hand that give back."""

    work: float = WORK
    done: Counter[bytes] = field(default_factory=Counter)
    dead: set[bytes] = field(default_factory=set)
    of: Counter[str] = field(default_factory=Counter)
    calls: list[float] = field(default_factory=list)
    failed: set[bytes] = field(default_factory=set)

    def outcome(self, message: MessageExt) -> str:
        """Counts a message that was worked on; of a hundred, four fail once and one for good."""
        number = int(message.body[1:])
        self.of["broker-b" if message.body.startswith(b"b") else "broker-a"] += 1
        if number % 100 == 50:
            self.dead.add(message.body)
            return "dead"
        if number % 25 == 5 and not message.reconsume_times and message.body not in self.failed:
            self.failed.add(message.body)
            return "fail"
        self.done[message.body] += 1
        return "done"


async def fill(namesrv: str, count: int) -> set[bytes]:
    bodies: set[bytes] = set()
    async with Admin(namesrv=namesrv) as admin, Producer("filler", namesrv=namesrv) as producer:
        await admin.create_topic(TOPIC, queues=QUEUES)
        for broker in ("a", "b"):
            texts = [f"{broker}{number}".encode() for number in range(count)]
            bodies.update(texts)
            for queue_id in range(QUEUES):
                mine = [Message(TOPIC, body, sharding_key=body.decode()) for body in texts[queue_id::QUEUES]]
                queue = MessageQueue(TOPIC, f"broker-{broker}", queue_id)
                for start in range(0, len(mine), 200):
                    await producer.send_batch(mine[start : start + 200], queue=queue)
    return bodies


def member(namesrv: str, shape: str, handled: Handled) -> Consumer:
    async def single(message: MessageExt) -> None:
        await asyncio.sleep(handled.work)
        outcome = handled.outcome(message)
        if outcome == "dead":
            raise DeadLetter("as its body says")
        if outcome == "fail":
            raise ValueError("as its body says")

    async def batch(messages: Batch) -> None:
        await asyncio.sleep(handled.work)
        for message in messages:
            outcome = handled.outcome(message)
            if outcome == "dead":
                messages.mark_dead_letter(message)
            elif outcome == "fail":
                messages.mark_retry(message)

    options = {"namesrv": namesrv, "start_from": "earliest", "retry": Retry(delays=(1,))}
    if shape == "hand":
        return Consumer("g", topics=TOPIC, **options)
    consumer = Consumer("g", concurrency=SLOTS, **options)
    if shape == "batch":
        consumer.subscribe(TOPIC, batch, batch_size=4)
    else:
        consumer.subscribe(TOPIC, single, order="key" if shape == "key" else None)
    return consumer


async def by_hand(consumer: Consumer, handled: Handled) -> None:
    while True:
        for message in await consumer.receive(1):
            await asyncio.sleep(handled.work)
            outcome, began = handled.outcome(message), monotonic()
            if outcome == "dead":
                await consumer.dead_letter(message)
            elif outcome == "fail":
                await consumer.retry(message)
            else:
                consumer.done(message)
                continue
            handled.calls.append(monotonic() - began)


async def in_process(namesrv: str, shape: str, handled: Handled, during: Callable[[], Awaitable[None]]) -> dict[str, object]:
    async with member(namesrv, shape, handled) as consumer:
        tasks = [asyncio.create_task(by_hand(consumer, handled)) for _ in range(SLOTS)] if shape == "hand" else []
        try:
            await during()
            stats = consumer.stats()
            return {"dead_lettered": stats.dead_lettered, "unsure": stats.unsure, "problems": len(consumer.health().problems)}
        finally:
            for task in tasks:
                task.cancel()


async def by_command(namesrv: str, handled: Handled, during: Callable[[], Awaitable[None]]) -> dict[str, object]:
    """Runs ``rmq consume --exec``; its commands write their bodies and attempts into a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bodies"
        path.touch()
        script = Path(folder) / "work.sh"
        script.write_text(
            f'read -r body\n[ -e {folder}/fast ] || sleep {WORK}\necho "$body $RMQ_ATTEMPT" >> {path}\nn=$((${{body#?}}))\n'
            "[ $((n % 100)) = 50 ] && exit 65\n[ $((n % 25)) = 5 ] && [ $RMQ_ATTEMPT = 1 ] && exit 75\nexit 0\n"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rmq_async.cli", "consume", TOPIC, "--group", "g", "--from", "earliest", "--namesrv", namesrv,
            "--exec", f"sh {script}", "--concurrency", str(SLOTS), stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

        async def read() -> None:
            with path.open() as lines:
                while True:
                    if not handled.work:
                        (Path(folder) / "fast").touch()
                    for line in lines.readlines():
                        body, attempt = line.split()
                        number = int(body[1:])
                        handled.of[f"broker-{body[0]}"] += 1
                        if number % 100 == 50:
                            handled.dead.add(body.encode())
                        elif number % 25 != 5 or attempt != "1":
                            handled.done[body.encode()] += 1
                    await asyncio.sleep(0.1)

        reading = asyncio.create_task(read())
        try:
            await during()
            return {"running": process.returncode is None}
        finally:
            reading.cancel()
            process.send_signal(signal.SIGINT)
            await process.wait()


async def measure(shape: str, trouble: str | None, seconds: float, count: int) -> dict[str, object]:
    async with RealCluster(version=DEFAULT_VERSION, brokers=2) as cluster:
        namesrv, broker, handled = cluster.namesrv, cluster.brokers[0], Handled()
        bodies = await fill(namesrv, count)
        found: dict[str, object] = {"shape": shape, "trouble": trouble, "seconds": seconds}

        async def during() -> None:
            await asyncio.sleep(BEFORE)
            async with Admin(namesrv=namesrv, instance_name="drainer", request_timeout=10.0) as admin:
                if trouble == "frozen":
                    broker.pause()
                elif trouble == "drained":
                    await set_permission(admin, broker.address, 4)
                before, others = handled.of["broker-b"], handled.of["broker-a"]
                await asyncio.sleep(seconds)
                found["rate_b"] = round((handled.of["broker-b"] - before) / seconds, 2)
                found["rate_a"] = round((handled.of["broker-a"] - others) / seconds, 2)
                if trouble == "frozen":
                    broker.resume()
                elif trouble == "drained":
                    await set_permission(admin, broker.address, 6)
            handled.work, began = 0.0, monotonic()
            while len(handled.done) + len(handled.dead) < len(bodies) and monotonic() - began < AFTER:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            found["all_after"] = round(monotonic() - began, 1)
            await asyncio.sleep(3.0)  # for the last dead letters

        if shape == "exec":
            found |= await by_command(namesrv, handled, during)
        else:
            found |= await in_process(namesrv, shape, handled, during)
        found |= {
            "messages": len(bodies),
            "lost": len(bodies - set(handled.done) - handled.dead),
            "repeated": handled.done.total() - len(handled.done),
            "dead": len(handled.dead),
            "longest_call": round(max(handled.calls, default=0.0), 2),
        }
        return found


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--trouble", default=",".join(TROUBLES))
    parser.add_argument("--seconds", type=float, default=60.0, help="of the trouble")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    logging.getLogger("rmq_async").setLevel(logging.CRITICAL)
    failed = 0
    for shape in options.shapes.split(","):
        per_second = SLOTS / WORK * (4 if shape == "batch" else 1)
        count = round(per_second * (BEFORE + options.seconds) * 1.2 / 200) * 200
        base = await measure(shape, None, options.seconds, count)
        print(json.dumps(base), flush=True)
        for trouble in options.trouble.split(","):
            found = await measure(shape, trouble, options.seconds, count)
            share = found["rate_b"] / max(base["rate_b"], 0.01)  # type: ignore[operator, call-overload]
            good = share >= LEAST and not found["lost"] and found["longest_call"] < LONGEST_CALL  # type: ignore[operator]
            print(json.dumps(found | {"share": round(share, 2), "good": good}), flush=True)
            failed += not good
    return int(options.check and failed > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
