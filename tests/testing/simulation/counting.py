"""A server that greets, counts what it gets, and reports the count; as a process of its own: ``python counting.py``."""

from __future__ import annotations

import asyncio
from typing import cast

GREETING = b"hello"
ENOUGH = 20_000_000
ALL = b"all of it"


class Counting(asyncio.Protocol):
    """Stops reading for good after a first byte "p"."""

    def __init__(self) -> None:
        self._count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        if not self._count and data.startswith(b"p"):
            self._transport.pause_reading()
        self._count += len(data)
        if self._count == ENOUGH:
            self._transport.write(ALL)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Counting, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
