"""Draws ``rmq top`` for docs/cli.md: a small cluster with traffic, one broker of which stops responding.

``python tools/picture_of_top.py > docs/rmq_top.svg``
"""

from __future__ import annotations

import asyncio
import io
import random
import re
from contextlib import AsyncExitStack, suppress
from time import monotonic, time

from rich.console import Console

from rmq_async import Admin, Consumer, Message, MessageExt, Producer, RocketMQError
from rmq_async.cli.top.controls import Controls
from rmq_async.cli.top.figures import Watch
from rmq_async.cli.top.view import picture
from rmq_async.embedded import EmbeddedRocketMQ

SENT = {"OrderTopic": 300, "PaymentTopic": 150, "MailTopic": 80, "AuditTopic": 30, "InvoiceTopic": 5}
"""Messages a second."""
GROUPS = {"billing": ("OrderTopic", 0.001), "payments": ("PaymentTopic", 0.02), "mailer": ("MailTopic", 0.001)}
"""Topic, and seconds for each message."""
WIDTH, HEIGHT = 112, 23
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Of another host; the picture has others to fall back on."""


async def main() -> str:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedRocketMQ(brokers=3))
        admin = await stack.enter_async_context(Admin(namesrv=server.namesrv, request_timeout=1.0))
        producer = await stack.enter_async_context(Producer("shop", namesrv=server.namesrv))
        for topic in SENT:
            await admin.create_topic(topic, queues=2)
        async with Consumer("audit", namesrv=server.namesrv, topics="AuditTopic", start_from="earliest"):
            pass
        for group, (topic, seconds) in GROUPS.items():
            consumer = Consumer(group, namesrv=server.namesrv, start_from="earliest", concurrency=2, instance_name=group)
            consumer.subscribe(topic, _handler(seconds))
            await stack.enter_async_context(consumer)
        async with asyncio.TaskGroup() as senders:
            tasks = [senders.create_task(_send(producer, topic, rate)) for topic, rate in SENT.items()]
            await asyncio.sleep(6.0)
            server.stall("broker-c")
            watch = Watch()
            for _ in range(2):
                figures = watch.figures(await admin.overview(), monotonic(), round(time() * 1000))
                await asyncio.sleep(1.0)
            server.resume("broker-c")
            for task in tasks:
                task.cancel()
        console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
        console.print(picture(figures, Controls(), HEIGHT))
        return FONTS.sub("", console.export_svg(title="rmq top", unique_id="rmq-top"))


def _handler(seconds: float):
    async def handle(_: MessageExt) -> None:
        await asyncio.sleep(seconds)

    return handle


async def _send(producer: Producer, topic: str, rate: int) -> None:
    while True:
        with suppress(RocketMQError):
            await producer.send_async(Message(topic, b"x" * 100), on_error=lambda error: None)
        await asyncio.sleep(random.expovariate(rate))


if __name__ == "__main__":
    print(asyncio.run(main()))
