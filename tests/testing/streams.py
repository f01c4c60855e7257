"""A server and a client of plain bytes, for proxies to stand between."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

from ..support.waiting import until as until


class Echo:
    """Sends back what it gets, or with ``source`` sends so many bytes on each connection. ``received``: per connection."""

    def __init__(self, source: int | None = None) -> None:
        self.received: list[bytearray] = []
        self.ends: list[str] = []
        """How each connection ended: "eof" or "reset"."""
        self.source = source
        self.tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    async def __aenter__(self) -> Self:
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.serve(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = bytearray()
        self.received.append(kept)
        try:
            if self.source is not None:
                writer.write(bytes(self.source))
            while data := await reader.read(65536):
                kept += data
                if self.source is None:
                    writer.write(data)
                    await writer.drain()
            self.ends.append("eof")
        except ConnectionError:
            self.ends.append("reset")
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()


class Client:
    def __init__(self, address: str) -> None:
        self.address = address

    async def __aenter__(self) -> Self:
        host, _, port = self.address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def ask(self, data: bytes, timeout: float = 60.0) -> bytes:
        """Sends ``data`` and reads as many bytes."""
        self.writer.write(data)
        return await asyncio.wait_for(self.reader.readexactly(len(data)), timeout)

    async def rest(self, timeout: float = 60.0) -> tuple[bytes, str]:
        """Everything until the end, and whether that was "eof" or "reset"."""
        found = bytearray()
        try:
            while data := await asyncio.wait_for(self.reader.read(65536), timeout):
                found += data
        except ConnectionError:
            return bytes(found), "reset"
        return bytes(found), "eof"
