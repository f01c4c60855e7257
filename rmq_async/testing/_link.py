"""The server's end of one connection, for peers that tests set up: it decodes commands, writes, and ends by FIN or RST."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from abc import ABC, abstractmethod
from typing import cast

from rmq_protocol.command import RemotingCommand, decode_command
from rmq_protocol.errors import ProtocolError
from rmq_protocol.frame import FrameDecoder


class Link(asyncio.Protocol, ABC):
    """One accepted connection.

    What is written while one read is handled leaves in one write, at the latest before a close.

    Attributes:
        transport: There from ``connection_made`` on.
        lost: Done when the connection has ended; its result is the error that ended it, if any.
    """

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._decoder = FrameDecoder()
        self._gathered: list[bytes] | None = None

    @abstractmethod
    def take(self, command: RemotingCommand) -> None:
        """Handle one received command."""

    def broken(self, error: ProtocolError) -> None:
        """Handle bytes that are not a frame, or a frame that is not a command; raise ``error`` unless a subclass does
        otherwise.
        """
        raise error

    @property
    def closing(self) -> bool:
        return self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._gathered = []
        try:
            for frame in self._decoder.feed(data):
                self.take(decode_command(frame))
            if self._decoder.error is not None:
                self.broken(self._decoder.error)
        except ProtocolError as error:
            self.broken(error)
        finally:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(exc)

    def write(self, data: bytes) -> None:
        """Send ``data``; drop it if the connection is closing."""
        if self._gathered is not None:
            self._gathered.append(data)
        elif not self.closing:
            self.transport.write(data)

    def close(self) -> None:
        """End the connection by FIN, after everything written before."""
        self._flush()
        self.transport.close()

    def reset(self) -> None:
        """End the connection by RST; what has not left yet is lost."""
        if not self.lost.done():
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered:
            self.write(b"".join(gathered))
