"""What asyncio's interfaces of transports and servers demand beyond reading and writing."""

from __future__ import annotations

import asyncio
import errno
from typing import Any, cast

import pytest

from rmq_async.testing.simulation import SimulationError

from .networks import PORT, Hosts, Recorder


class Buffered(asyncio.BufferedProtocol):
    """Takes seven bytes at a time."""

    def __init__(self) -> None:
        self.received = b""
        self._buffer = bytearray(7)
        self.ended = asyncio.Event()

    def get_buffer(self, sizehint: int) -> bytearray:
        assert sizehint > 0
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


def reports_of(hosts: Hosts, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    hosts.loops[name].set_exception_handler(lambda _, context: found.append(context))
    return found


def test_a_buffered_protocol_gets_every_byte() -> None:
    hosts = Hosts()
    buffered = Buffered()

    async def main() -> None:
        await hosts.listen(lambda: buffered)
        near = await hosts.connect(Recorder())
        near.transport.write(bytes(range(100)))
        near.transport.close()
        await buffered.ended.wait()
        assert buffered.received == bytes(range(100))

    hosts.run(main)


def test_a_buffered_protocol_without_room_loses_its_stream() -> None:
    class Full(Buffered):
        def get_buffer(self, sizehint: int) -> bytearray:
            return bytearray()

    hosts = Hosts()
    reports = reports_of(hosts, "server")

    async def main() -> None:
        await hosts.listen(Full)
        near = await hosts.connect(Recorder())
        near.transport.write(b"x")
        await near.lost()

    hosts.run(main)
    assert "empty buffer" in str(reports[0]["exception"])


def test_a_transport_can_change_its_protocol() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        other = Recorder()
        assert far.transport.get_protocol() is far
        far.transport.set_protocol(other)
        near.transport.write(b"x")
        assert await other.size(1) == b"x"
        assert far.received == b""

    hosts.run(main)


def test_wrong_calls_of_a_transport_raise_as_asyncio_does() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, _ = await hosts.pair()
        with pytest.raises(TypeError, match="bytes-like object, not 'str'"):
            near.transport.write(cast("bytes", "x"))
        with pytest.raises(ValueError, match="must be >= low"):
            near.transport.set_write_buffer_limits(high=1, low=2)
        near.transport.set_write_buffer_limits(low=10)
        assert near.transport.get_write_buffer_limits() == (10, 40)
        near.transport.set_write_buffer_limits()
        assert near.transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
        near.transport.write(b"")
        near.transport.abort()
        near.transport.write(b"after the end")
        assert await near.lost() is None

    hosts.run(main)


def test_errors_of_a_protocol_are_reported() -> None:
    class Failing(Recorder):
        def eof_received(self) -> bool:
            raise KeyError("eof")

        def pause_writing(self) -> None:
            raise KeyError("pause")

    hosts = Hosts()
    reports = reports_of(hosts, "server")

    async def main() -> None:
        near, far = await hosts.pair(near=Recorder(keep_open=True), far=Failing())
        far.transport.write(bytes(2_000_000))
        await near.size(2_000_000)
        near.transport.write_eof()
        assert isinstance(await far.lost(), KeyError)

    hosts.run(main)
    assert [report["message"] for report in reports] == [
        "protocol.pause_writing() failed",
        "Fatal error: protocol.eof_received() call failed.",
    ]


def test_a_factory_that_fails_resets_the_connection() -> None:
    hosts = Hosts()
    reports = reports_of(hosts, "server")

    def factory() -> asyncio.Protocol:
        raise KeyError("no protocol")

    async def main() -> None:
        await hosts.listen(factory)
        near = await hosts.connect(Recorder())
        assert isinstance(await near.lost(), ConnectionResetError)
        await asyncio.sleep(1)

    hosts.run(main)
    assert "transport creation" in reports[0]["message"]
    assert hosts.left() == 0


@pytest.mark.parametrize("how", ["close_clients", "abort_clients"])
def test_a_server_ends_its_connections(how: str) -> None:
    hosts = Hosts()

    async def main() -> None:
        server = await hosts.listen(Recorder)
        nears = [await hosts.connect(Recorder()) for _ in range(3)]
        await asyncio.sleep(0.1)
        waiting = hosts.loops["server"].create_task(server.wait_closed())
        server.close()
        await asyncio.sleep(1)
        assert not waiting.done(), "its connections go on"
        getattr(server, how)()
        for near in nears:
            assert await near.lost() is None
        await asyncio.sleep(1)
        assert waiting.done()
        await server.wait_closed()

    hosts.run(main)
    assert hosts.left() == 0


def test_serve_forever_ends_when_it_is_cancelled() -> None:
    hosts = Hosts()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Recorder, None, PORT)
        assert server.get_loop() is loop
        await server.start_serving()
        serving = loop.create_task(server.serve_forever())
        await asyncio.sleep(5)
        await hosts.connect(Recorder(), "client")
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert not server.is_serving()
        with pytest.raises(RuntimeError, match="closed"):
            await server.serve_forever()

    hosts.run(main)


def test_connections_that_were_not_accepted_are_reset_with_their_listener() -> None:
    hosts = Hosts()

    async def main() -> None:
        server = await hosts.listen(Recorder)
        hosts.pause("server")
        near = await hosts.connect(Recorder())
        await asyncio.sleep(1)
        server.close()
        assert isinstance(await near.lost(), ConnectionResetError)

    hosts.run(main)
    assert hosts.left() == 0


def test_addresses_that_cannot_be_are_refused() -> None:
    hosts = Hosts()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(OSError, match="unreachable") as raised:
            await loop.create_connection(asyncio.Protocol, "2001:db8::1", PORT)
        assert raised.value.errno == errno.ENETUNREACH
        with pytest.raises(OverflowError, match="0-65535"):
            await loop.create_server(asyncio.Protocol, None, 70_000)

    hosts.run(main)
    hosts["client"].move("10.0.0.3")
    with pytest.raises(SimulationError, match=r"third would get 10\.0\.0\.3, to which another machine has moved"):
        hosts.network.host("third")
    with pytest.raises(SimulationError, match="name of a machine must not be empty"):
        hosts.network.host("")
