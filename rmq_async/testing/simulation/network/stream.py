"""Streams between the kernels of two machines. Each kernel has one end of a stream, which a process may own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, MutableMapping
from errno import ECONNRESET, EPIPE
from typing import Any, Final, Protocol

from ..scheduler import Call, Scheduler
from .flow import Flow, Segment
from .link import ENDS, Link, system_error

HANDSHAKE: Final = 63_000_000_000
"""Nanoseconds that a kernel waits for the end of a handshake, as Linux does with ``tcp_synack_retries`` = 5."""
Place = tuple[str, int]
"""An address and a port."""
Observer = Callable[[str, int, bytes], None]
"""A function that is called with the direction of a stream ("client:40000->broker-a:10911"), a time in nanoseconds, and the
bytes that were delivered at that time. It is called with no bytes when the receiver's kernel drops the stream."""


class Owner(Protocol):
    """The reader and writer of an end, which is a transport of a process."""

    def readable(self) -> None:
        """Called when there are bytes, the end of the stream, or an error to read."""

    def writable(self) -> None:
        """Called when the kernel accepts more bytes."""


class Wakes:
    """Wakes the process of a machine. While the process is paused, each different wake-up is kept once until the process
    continues.
    """

    def __init__(self) -> None:
        self._paused = False
        self._held: dict[Callable[[], None], None] = {}

    def wake(self, call: Callable[[], None]) -> None:
        if self._paused:
            self._held[call] = None
        else:
            call()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        held, self._held = self._held, {}
        for call in held:
            call()

    def forget(self) -> None:
        """Drop the wake-ups of a process that has ended."""
        self._paused = False
        self._held.clear()


class End:
    """One end of a stream.

    Args:
        *tables: Tables of the machine and of the link. They hold the end under its number as long as the kernel keeps the end.
    """

    __slots__ = (
        "_handshake", "_inbox", "_tables", "_wakes", "accepted", "attached", "closed", "eof", "error", "gone", "incoming", "local",
        "number", "observed", "out", "owner", "peer", "remote", "unread",
    )  # fmt: skip

    out: Flow
    """The bytes that this end sends."""
    incoming: Flow
    """The bytes that the other end sends."""
    peer: End

    def __init__(self, number: int, local: Place, remote: Place, wakes: Wakes, *tables: MutableMapping[int, Any]) -> None:
        self.number = number
        self.local = local
        self.remote = remote
        self.owner: Owner | None = None
        self.accepted: Callable[[End], None] | None = None
        """A function that is called when the handshake is complete, on the side of the listener. None on the other side and
        after the handshake."""
        self.observed: Callable[[bytes], None] | None = None
        self.attached = True
        """Whether the machine is on and has the address of this end."""
        self.closed = False
        """Whether the process has closed the end."""
        self.gone = False
        """Whether the kernel has dropped the end. It responds with a reset to segments that still arrive for the end."""
        self.eof = False
        """Whether the end of the other side's bytes has arrived."""
        self.error: OSError | None = None
        self.unread = 0
        """Number of bytes that the kernel has received and the process has not read."""
        self._handshake: Call | None = None
        self._inbox: deque[bytes] = deque()
        self._wakes = wakes
        self._tables = tables
        for table in tables:
            table[number] = self

    def __repr__(self) -> str:
        return f"<End {self.local[0]}:{self.local[1]} of a stream with {self.remote[0]}:{self.remote[1]}>"

    # -- for its owner

    @property
    def ready(self) -> bool:
        """Whether there are bytes, the end of the stream, or an error to read."""
        return self.unread > 0 or self.eof or self.error is not None

    def read(self, most: int) -> bytes:
        """Return up to ``most`` bytes. Return no bytes at the end of the stream.

        Raises:
            OSError: If the stream has failed.
        """
        inbox = self._inbox
        if not inbox:
            if self.error is not None:
                raise self.error
            return b""
        data = inbox.popleft()
        if inbox or len(data) > most:
            data = data + b"".join(inbox)
            inbox.clear()
            if len(data) > most:
                inbox.append(data[most:])
                data = data[:most]
        self.unread -= len(data)
        if not self.gone:
            self.incoming.consumed()
        return data

    def send(self, data: bytes | memoryview) -> int:
        """Pass bytes to the kernel. Return the number of bytes that it has accepted.

        Raises:
            OSError: If the stream has failed.
        """
        if self.error is not None:
            error, self.error = self.error, system_error(EPIPE)
            raise error
        return self.out.take(data)

    def finish(self) -> None:
        """Stop sending on this end, after the accepted bytes."""
        if not self.gone:
            self.out.finish()

    def close(self) -> None:
        """End the stream as the close of a socket does: with a reset if there are unread bytes, and in order otherwise."""
        if self.closed:
            return
        self.closed = True
        self.owner = None
        if self.gone:
            return
        if self.unread:
            self.reset()
        else:
            self.out.finish()
            if self.out.done:
                self._forget()

    def reset(self) -> None:
        """Drop the stream and reset the other end."""
        self.closed = True
        if not self.gone:
            self.out.reset()
            self._drop()

    # -- for the kernel and the link

    def fail(self, error: OSError) -> None:
        """End the stream on this side. The owner gets ``error`` after the bytes that have arrived."""
        if not self.gone:
            self.error = error
            self.gone = True
            self.out.end()
            self._forget()
            self._wake()
            self.writable()

    def expect(self, accepted: Callable[[End], None], scheduler: Scheduler) -> None:
        """Call ``accepted`` at the end of the handshake. Drop the stream if the handshake does not end within ``HANDSHAKE``."""
        self.accepted = accepted
        self._handshake = scheduler.after(HANDSHAKE, self._drop)

    def vanish(self) -> None:
        """End the stream on this side as a loss of power does. The other end is not notified."""
        self.attached = False
        self.closed = True
        self._drop()

    def heal(self) -> None:
        self.out.heal()

    def arrive(self, kind: Segment, data: bytes) -> None:
        """Receive a segment from the link."""
        if self.gone:
            if kind is not Segment.RESET:
                self.refuse()
        elif kind is Segment.RESET:
            self._reset()
        elif kind is Segment.OPEN:
            if self.accepted is not None:
                accepted = self.accepted
                self._settle()
                accepted(self)
        elif kind is Segment.FIN:
            self.eof = True
            self._wake()
        elif self.closed:  # the process no longer reads
            self.reset()
        else:
            self._inbox.append(data)
            self.unread += len(data)
            if self.observed is not None:
                self.observed(data)
            self._wake()

    def refuse(self) -> None:
        """Respond with a reset, which the other end gets unless the reset is lost."""
        self.out.way.send(0, self._refused)

    def unanswered(self) -> None:
        self.out.unanswered()

    def writable(self) -> None:
        if self.owner is not None:
            self._wakes.wake(self.owner.writable)

    def finished(self) -> None:
        if self.closed:
            self._forget()

    def _refused(self) -> None:
        if self.out.blocked:
            self.peer.unanswered()
        else:
            self.peer._reset()  # noqa: SLF001 - its own class

    def _reset(self) -> None:
        """Fail as Linux does, with EPIPE if the other end had closed its side before, and with ECONNRESET otherwise."""
        self.fail(system_error(EPIPE if self.eof else ECONNRESET))

    def _wake(self) -> None:
        if self.owner is not None:
            self._wakes.wake(self.owner.readable)

    def _drop(self) -> None:
        self.gone = True
        self.owner = None
        self._settle()
        self.out.abandon()
        self._inbox.clear()
        self.unread = 0
        self._forget()

    def _settle(self) -> None:
        """End the wait for a handshake."""
        self.accepted = None
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None

    def _forget(self) -> None:
        for table in self._tables:
            table.pop(self.number, None)
        if self.observed is not None:
            self.observed(b"")
            self.observed = None


class Side(Protocol):
    """A machine at a link."""

    name: str
    wakes: Wakes
    ends: dict[int, End]


def connect_ends(
    scheduler: Scheduler, link: Link, stream: int, near: tuple[Side, Place], far: tuple[Side, Place], observe: Observer | None
) -> tuple[End, End]:
    """Return both ends of a new stream over ``link``.

    Args:
        near: The machine and the place that connect.
        far: The machine and the place that accept.
    """
    (client, local), (server, remote) = near, far
    way, back = link.way(client.name), link.way(server.name)
    number = ENDS * stream
    first = End(number, local, remote, client.wakes, client.ends, link.ends)
    second = End(number + 1, remote, local, server.wakes, server.ends, link.ends)
    first.peer, second.peer = second, first
    first.out = second.incoming = Flow(scheduler, first, second, way, back)
    second.out = first.incoming = Flow(scheduler, second, first, back, way)
    if observe is not None:
        client_side, server_side = f"{client.name}:{local[1]}", f"{server.name}:{remote[1]}"
        second.observed = lambda data: observe(f"{client_side}->{server_side}", scheduler.now, data)
        first.observed = lambda data: observe(f"{server_side}->{client_side}", scheduler.now, data)
    return first, second
