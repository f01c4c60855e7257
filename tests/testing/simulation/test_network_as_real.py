"""The same scenario on sockets of the system and on the simulated network, with the same outcome at both ends."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from .networks import Hosts, Recorder

MANY = 20_000_000
"""Bytes that no pair of kernels takes without a reader."""


class Outcome(NamedTuple):
    """``received``: None where it depends on the sizes of buffers."""

    near: list[str]
    near_error: str
    far: list[str]
    far_error: str
    received: bytes | None


async def pair(near: Recorder, far: Recorder) -> asyncio.AbstractServer:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: far, "127.0.0.1", 0)
    await loop.create_connection(lambda: near, *server.sockets[0].getsockname())
    await far.until(lambda: bool(far.events))
    return server


async def play(scenario: Callable[[Recorder, Recorder], Awaitable[bool]], keep_open: bool) -> Outcome:
    near, far = Recorder(keep_open=keep_open), Recorder(keep_open=keep_open)
    server = await pair(near, far)
    async with asyncio.timeout(20):
        exact = await scenario(near, far)
        for recorder in (near, far):
            recorder.transport.resume_reading()
            recorder.transport.close()
            await recorder.lost()
        server.close()
        await server.wait_closed()
    return Outcome(
        near.events, type(near.error).__name__, far.events, type(far.error).__name__, bytes(far.received) if exact else None
    )


async def close(near: Recorder, far: Recorder) -> bool:
    near.transport.write(b"all of this")
    near.transport.close()
    await far.lost()
    return True


async def abort(near: Recorder, far: Recorder) -> bool:
    near.transport.write(b"taken by the kernel")
    near.transport.abort()
    await far.lost()
    return True


async def abort_with_a_full_buffer(near: Recorder, far: Recorder) -> bool:
    near.transport.write(bytes(MANY))
    near.transport.abort()
    await far.lost()
    assert 0 < len(far.received) < MANY
    return False


async def close_with_unread_bytes(near: Recorder, far: Recorder) -> bool:
    far.transport.pause_reading()
    near.transport.write(b"unread")
    await asyncio.sleep(0.1)
    far.transport.close()
    await near.lost()
    return True


async def write_to_a_closed_end(near: Recorder, far: Recorder) -> bool:
    far.transport.close()
    await far.lost()
    await near.until(lambda: "eof" in near.events)
    near.transport.write(b"late")
    await asyncio.sleep(0.1)
    near.transport.write(b"later")
    await near.lost()
    return True


async def half_close(near: Recorder, far: Recorder) -> bool:
    near.transport.write(b"question")
    near.transport.write_eof()
    await far.until(lambda: "eof" in far.events)
    far.transport.write(b"answer")
    await near.size(6)
    far.transport.close()
    await near.until(lambda: "eof" in near.events)
    return True


async def pause_and_resume(near: Recorder, far: Recorder) -> bool:
    far.transport.pause_reading()
    near.transport.write(bytes(MANY))
    await asyncio.sleep(0.1)
    assert near.events == ["made", "paused"]
    assert 0 < near.transport.get_write_buffer_size() < MANY
    far.transport.resume_reading()
    await far.size(MANY)
    await near.until(lambda: near.events == ["made", "paused", "resumed"])
    near.transport.close()
    await far.lost()
    return True


async def close_with_a_full_buffer(near: Recorder, far: Recorder) -> bool:
    far.transport.pause_reading()
    near.transport.write(bytes(MANY))
    near.transport.close()
    await asyncio.sleep(0.1)
    assert "lost" not in near.events
    far.transport.resume_reading()
    await far.lost()
    await near.lost()
    return True


async def reset_while_reading_is_paused(near: Recorder, far: Recorder) -> bool:
    far.transport.pause_reading()
    near.transport.pause_reading()
    near.transport.write(b"unread")
    far.transport.write(b"read in spite of the reset")
    await asyncio.sleep(0.1)
    far.transport.close()
    await asyncio.sleep(0.1)
    assert near.events == ["made"], "nothing looks at the socket"
    near.transport.resume_reading()
    await near.lost()
    assert near.received == b"read in spite of the reset"
    return True


SCENARIOS: dict[str, tuple[Callable[[Recorder, Recorder], Awaitable[bool]], bool]] = {
    "close": (close, False),
    "abort": (abort, False),
    "abort with a full buffer": (abort_with_a_full_buffer, False),
    "close with unread bytes": (close_with_unread_bytes, False),
    "write to a closed end": (write_to_a_closed_end, True),
    "half close": (half_close, True),
    "pause and resume": (pause_and_resume, False),
    "close with a full buffer": (close_with_a_full_buffer, False),
    "reset while reading is paused": (reset_while_reading_is_paused, False),
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_stream_ends_as_on_sockets_of_the_system(name: str) -> None:
    scenario, keep_open = SCENARIOS[name]
    real = await play(scenario, keep_open)
    assert await asyncio.to_thread(lambda: Hosts().run(lambda: play(scenario, keep_open))) == real


async def errors() -> list[tuple[str, int | None]]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def error(call: Callable[[], Awaitable[Any]]) -> tuple[str, int | None]:
        with pytest.raises((OSError, OverflowError)) as raised:
            await call()
        return type(raised.value).__name__, getattr(raised.value, "errno", None)

    found = [await error(lambda: loop.create_server(asyncio.Protocol, "127.0.0.1", port))]
    found.append(await error(lambda: loop.create_server(asyncio.Protocol, "192.0.2.1", 0)))
    server.close()
    await server.wait_closed()
    found.append(await error(lambda: loop.create_connection(asyncio.Protocol, "127.0.0.1", port)))
    found.append(await error(lambda: loop.create_connection(asyncio.Protocol, "name.invalid", port)))
    return found


async def test_calls_fail_as_on_sockets_of_the_system() -> None:
    simulated = await asyncio.to_thread(lambda: Hosts().run(errors))
    assert simulated == [
        ("OSError", errno.EADDRINUSE),
        ("OSError", errno.EADDRNOTAVAIL),
        ("ConnectionRefusedError", errno.ECONNREFUSED),
        ("gaierror", socket.EAI_NONAME),
    ]
    real = await errors()
    if real[1] == ("OSError", None):  # from 3.13 on asyncio passes over addresses that the host lacks, and gives no number
        real[1] = simulated[1]
    assert real[:3] == simulated[:3]
    assert real[3][0] == "gaierror", "which of its numbers depends on the resolver"
