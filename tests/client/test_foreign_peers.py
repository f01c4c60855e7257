"""Addresses at which something else listens: the error says what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rmq_async import NameServerError, Producer
from rmq_async._loops import close_servers


@asynccontextmanager
async def listening(answer: bytes, *, greets: bool = False, closes: bool = True) -> AsyncIterator[str]:
    """Yields the address of a server that answers what it reads first, or greets, with ``answer``, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if greets:
            writer.write(answer)
        await reader.read(4096)  # a server that closes with unread bytes resets the connection, and its own may be lost
        if not greets:
            writer.write(answer)
        if not closes:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    finally:
        await close_servers([server])


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("answer", "greets", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "it answers as an HTTP server: 'HTTP/1.1 400 Bad Request'"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", True, "it answers as an SSH server: 'SSH-2.0-OpenSSH_9.6'"),
        (b"\x15\x03\x03\x00\x02\x02\x46", False, r"it speaks TLS \(record type 0x15\); set tls=True"),
        (b"-ERR unknown command\r\n", False, "it answers as a Redis server"),
        (b"\x4a\x00\x00\x00\x0a8.0.36\x00", True, "it answers as a MySQL server"),
        (
            b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x7f\xff",
            True,
            "the peer closed it: it answers as a gRPC or HTTP/2 server",
        ),
        (b"", False, r"the peer closed it before it had sent a byte: the server may require TLS \(tls=True\)"),
    ],
    ids=["HTTP", "SSH", "TLS", "Redis", "MySQL", "gRPC", "closed"],
)
async def test_what_answers_at_the_address_of_a_name_server_is_named(answer: bytes, greets: bool, expected: str) -> None:
    async with listening(answer, greets=greets) as address:
        with pytest.raises(NameServerError, match=expected) as caught:
            async with Producer("g", namesrv=address, request_timeout=1.0):
                pass
        assert "frame length" not in str(caught.value)
