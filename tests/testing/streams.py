"""A server and a client of plain bytes, for proxies to stand between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Self


class Echo:
    """Sends back what it gets, or with ``source`` sends so many bytes to whoever connects. ``received``: per connection."""

    def __init__(self, source: int | None = None) -> None:
        self.received: list[bytearray] = []
        self.ends: list[str] = []
        """How each connection ended: "eof" or "reset"."""
        self._source = source
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = bytearray()
        self.received.append(kept)
        try:
            if self._source is not None:
                writer.write(bytes(self._source))
            while data := await reader.read(65536):
                kept += data
                if self._source is None:
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
        self._address = address

    async def __aenter__(self) -> Self:
        host, _, port = self._address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def ask(self, data: bytes, timeout: float = 5.0) -> bytes:
        """Sends ``data`` and reads as many bytes."""
        self.writer.write(data)
        return await asyncio.wait_for(self.reader.readexactly(len(data)), timeout)

    async def rest(self, timeout: float = 5.0) -> tuple[bytes, str]:
        """Everything until the end, and whether that was "eof" or "reset"."""
        found = bytearray()
        try:
            while data := await asyncio.wait_for(self.reader.read(65536), timeout):
                found += data
        except ConnectionError:
            return bytes(found), "reset"
        return bytes(found), "eof"


async def until(condition: Callable[[], object], timeout: float = 5.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)
