"""One broadcast member, a process of its own: ``python broadcast_member.py NAMESRV GROUP TOPIC POSITIONS HANDLED``.

It keeps its positions in a file, as the example does, and appends a line to another one for each message that it has handled.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from rmq_async import Consumer, MessageExt  # noqa: E402


async def main(namesrv: str, group: str, topic: str, positions: str, handled: str) -> None:
    store = runpy.run_path(str(ROOT / "examples" / "broadcast.py"))["FilePositions"](Path(positions))
    consumer = Consumer(group, namesrv=namesrv, broadcast=store)
    file = os.open(handled, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @consumer.handler(topic)
    async def note(message: MessageExt) -> None:
        os.write(file, message.body + b"\n")

    async def report() -> None:
        while not consumer.health().ready:
            await asyncio.sleep(0.01)
        print("reads", flush=True)

    reporting = asyncio.get_running_loop().create_task(report())
    await consumer.run()
    await reporting


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
