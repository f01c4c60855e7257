"""Streams of the simulated network: bytes, their order and their time, pauses, and the ways to end."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from .networks import PORT, Hosts, Recorder

KIB = 1024


def test_bytes_arrive_complete_in_order_in_pieces_and_after_a_latency() -> None:
    hosts = Hosts(seed=4711)
    sent = Random(4711).randbytes(600_000)

    async def main() -> tuple[Recorder, float]:
        near, far = await hosts.pair()
        began = asyncio.get_running_loop().time()
        cut = Random(5)
        at = 0
        while at < len(sent):
            size = cut.randrange(1, 4000)
            near.transport.write(sent[at : at + size])
            at += size
            await asyncio.sleep(0.0001)
        await far.size(len(sent))
        near.transport.close()
        await far.lost()
        await asyncio.sleep(1)
        return far, began

    far, began = hosts.run(main)
    assert far.received == sent
    assert far.times == sorted(far.times)
    assert far.times[0] - began >= 0.0001
    assert len(far.sizes) > 50, "in many pieces"
    assert any(size % 4000 for size in far.sizes)
    assert hosts.left() == 0


def test_answers_that_change_nothing_are_no_segments() -> None:
    hosts = Hosts()

    async def main() -> tuple[int, int]:
        near, _ = await hosts.pair(far=Recorder(echo=True))
        await asyncio.sleep(1.0)
        carried, iterations = hosts.link.carried, hosts.scheduler.iterations
        for number in range(100):
            near.transport.write(b"x")
            await near.size(number + 1)
        return hosts.link.carried - carried, hosts.scheduler.iterations - iterations

    carried, iterations = hosts.run(main)
    assert carried == 200
    assert iterations <= 600


def test_latency_is_mostly_short_and_rarely_long() -> None:
    hosts = Hosts(seed=3)

    async def main() -> list[float]:
        near, _ = await hosts.pair(far=Recorder(echo=True))
        loop, trips = asyncio.get_running_loop(), list[float]()
        for number in range(3000):
            began = loop.time()
            near.transport.write(b"x")
            await near.size(number + 1)
            trips.append(loop.time() - began)
        return sorted(trips)

    trips = hosts.run(main)
    assert 0.0002 <= trips[0] < trips[1500] < 0.0009
    assert trips[2900] < 0.0011, "three of a hundred at most are long"
    assert 0.005 < trips[-1] < 0.5


def test_a_large_transfer_takes_the_time_of_the_bandwidth() -> None:
    hosts = Hosts()
    size = 12_500_000  # 0.1 s at 1 Gbit/s

    async def main() -> float:
        near, far = await hosts.pair()
        began = asyncio.get_running_loop().time()
        near.transport.write(bytes(size))
        await far.size(size)
        return asyncio.get_running_loop().time() - began

    assert 0.1 <= hosts.run(main) < 0.3


def test_a_reader_that_pauses_holds_the_writer_back() -> None:
    """Both kernels take 256 KiB each; the rest stays in the writer's transport, whose protocol is paused."""
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        far.transport.pause_reading()
        near.transport.set_write_buffer_limits(high=100 * KIB)
        near.transport.write(bytes(512 * KIB))
        await asyncio.sleep(1)
        assert near.transport.get_write_buffer_size() == 0, "256 KiB each in the window and in the send buffer"
        assert far.transport.get_extra_info("unread") == 256 * KIB
        assert near.events == ["made", "paused", "resumed"], "paused until the kernel had taken the most of it"
        near.transport.write(bytes(100 * KIB))
        assert near.events == ["made", "paused", "resumed"], "at the limit"
        near.transport.write(b"x")
        assert near.events[3:] == ["paused"]
        await asyncio.sleep(10)
        assert near.transport.get_write_buffer_size() == 100 * KIB + 1
        assert far.received == b""
        assert not far.transport.is_reading()
        far.transport.resume_reading()
        await far.size(612 * KIB + 1)
        await near.until(lambda: near.events[4:] == ["resumed"])
        assert near.transport.get_write_buffer_size() == 0

    hosts.run(main)


def test_a_high_water_mark_of_zero_pauses_for_one_byte_and_resumes_at_none() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        near.transport.set_write_buffer_limits(high=0, low=0)
        assert near.transport.get_write_buffer_limits() == (0, 0)
        near.transport.writelines([bytes(128 * KIB), bytearray(128 * KIB)])
        assert near.events == ["made"]
        near.transport.writelines([b"x"])
        assert near.events == ["made", "paused"]
        await far.size(256 * KIB + 1)
        await near.until(lambda: near.events == ["made", "paused", "resumed"])

    hosts.run(main)


def test_close_sends_what_was_written_and_ends_both_sides_in_order() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        near.transport.write(bytes(2_000_000))
        near.transport.close()
        assert near.transport.is_closing()
        near.transport.close()
        assert await far.lost() is None
        assert len(far.received) == 2_000_000
        assert far.events == ["made", "eof", "lost"]
        assert await near.lost() is None
        assert near.events == ["made", "paused", "resumed", "lost"]
        await asyncio.sleep(1)

    hosts.run(main)
    assert hosts.left() == 0


def test_write_eof_closes_one_direction() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair(far=Recorder(keep_open=True))
        assert near.transport.can_write_eof()
        near.transport.write(b"a question")
        near.transport.write_eof()
        with pytest.raises(RuntimeError, match="after write_eof"):
            near.transport.write(b"x")
        await far.until(lambda: far.events == ["made", "eof"])
        assert far.received == b"a question"
        far.transport.write(b"an answer")
        assert await near.size(9) == b"an answer"
        far.transport.close()
        assert await near.lost() is None
        await asyncio.sleep(1)

    hosts.run(main)
    assert hosts.left() == 0


def test_abort_drops_what_the_kernel_has_not_taken() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        near.transport.write(bytes(2_000_000))
        near.transport.abort()
        assert near.transport.get_write_buffer_size() == 0
        assert await near.lost() is None
        assert await far.lost() is None
        assert 0 < len(far.received) <= 256 * KIB
        await asyncio.sleep(1)

    hosts.run(main)
    assert hosts.left() == 0


def test_a_close_with_unread_bytes_resets_the_other_end() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        far.transport.pause_reading()
        near.transport.write(b"nothing reads this")
        await asyncio.sleep(0.5)
        far.transport.abort()
        error = await near.lost()
        assert isinstance(error, ConnectionResetError)
        assert error.errno == 104
        assert "eof" not in near.events

    hosts.run(main)
    assert hosts.left() == 0


def test_bytes_for_a_closed_end_are_answered_with_a_reset() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair(near=Recorder(keep_open=True))
        far.transport.close()
        await near.until(lambda: near.events == ["made", "eof"])
        near.transport.write(b"too late")
        assert near.events == ["made", "eof"]
        await asyncio.sleep(0.5)
        near.transport.write(b"and again")
        assert isinstance(await near.lost(), BrokenPipeError)

    hosts.run(main)
    assert hosts.left() == 0


def test_an_error_of_the_protocol_closes_the_stream_and_is_reported() -> None:
    hosts = Hosts()
    reported: list[object] = []

    class Failing(Recorder):
        def data_received(self, data: bytes) -> None:
            raise KeyError(data)

    async def main() -> None:
        near, far = await hosts.pair(far=Failing())
        hosts.loops["server"].set_exception_handler(lambda _, context: reported.append(context["message"]))
        near.transport.write(b"x")
        assert await near.lost() is None
        assert isinstance(await far.lost(), KeyError)

    hosts.run(main)
    assert reported == ["Fatal error: protocol.data_received() call failed."]


def test_the_ends_know_their_addresses() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        assert near.transport.get_extra_info("peername") == ("10.0.0.2", PORT)
        assert far.transport.get_extra_info("peername") == near.transport.get_extra_info("sockname")
        assert near.transport.get_extra_info("sockname")[0] == "10.0.0.1"
        sock = near.transport.get_extra_info("socket")
        assert sock.getpeername() == ("10.0.0.2", PORT)
        sock.setsockopt(6, 1, 1)
        assert sock.getsockopt(6, 1) == 1
        assert near.transport.get_extra_info("sslcontext") is None
        assert near.transport.get_extra_info("missing", 5) == 5

    hosts.run(main)


def test_streams_of_asyncio_run_over_it() -> None:
    hosts = Hosts()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main() -> list[bytes]:
        server = await hosts.on("server", lambda: asyncio.start_server(answer, "server", PORT))
        reader, writer = await asyncio.open_connection("server", PORT)
        writer.writelines([b"one\n", b"two\n"])
        writer.write_eof()
        lines = [await reader.readline(), await reader.readline(), await reader.read()]
        writer.close()
        await writer.wait_closed()
        await hosts.on("server", lambda: closed(server))
        await asyncio.sleep(1)
        return lines

    async def closed(server: asyncio.Server) -> None:
        server.close()
        await server.wait_closed()

    assert hosts.run(main) == [b"ONE\n", b"TWO\n", b""]
    assert hosts.left() == 0
