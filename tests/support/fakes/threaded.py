"""A peer in a thread with a loop of its own: it goes on while the client's loop is blocked."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from .answers import Answer, echo
from .peer import Peer


class ThreadedPeer:
    """A ``Peer`` in a thread of its own; ``peer.answer`` runs there."""

    def __init__(self, answer: Answer = echo, **options: Any) -> None:
        self.peer = Peer(answer, **options)
        self.ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.stop: asyncio.Event = None  # type: ignore[assignment]
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self.stop = asyncio.Event()
            async with self.peer:
                self.ready.set()
                await self.stop.wait()

        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(main())

    def __enter__(self) -> Peer:
        self.thread.start()
        assert self.ready.wait(60)
        return self.peer

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(60)
        assert not self.thread.is_alive()
