"""A host name with several addresses: a dead one costs a moment, a slow one is dropped, and a resolver that hangs is asked once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rmq_async.errors import ConnectError, RequestTimeoutError
from rmq_async.transport.addresses import first_of

from ..support.fakes import Peer
from .support import ping, pool_of, takes

pytestmark = pytest.mark.virtual_time

NAME = "broker.example"
DEAD = ("192.0.2.1", "192.0.2.2", "192.0.2.3")
"""No machine of the simulated network has them: packets to them are lost."""
REFUSING = ("127.0.0.2", "127.0.0.3")
"""Nothing listens there."""


@contextmanager
def resolving(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> Iterator[None]:
    """The running loop finds these addresses for every name."""

    async def look_up(host: str, port: int | None, **_: Any) -> list[Any]:
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in hosts]
        return [(family, socket.SOCK_STREAM, 6, "", (each, port)) for family, each in zip(families, hosts, strict=True)]

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
        yield


async def test_address_behind_dead_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in front drop packets: each costs a quarter of a second at most, not the time of the connect."""
    async with Peer() as peer, pool_of(connect_timeout=3) as pool:
        with resolving(monkeypatch, *DEAD[:2], "127.0.0.1"), takes(0.5):
            connection = await pool.connect(f"{NAME}:{peer.port}", 2)
        assert (await connection.request(ping(b"m"), 1)).body == b"m"


async def test_all_addresses_within_short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Peer() as peer, pool_of(connect_timeout=0.4) as pool:
        with resolving(monkeypatch, *DEAD, "127.0.0.1"):
            assert (await pool.connect(f"{NAME}:{peer.port}", 2)).is_open


async def test_address_behind_refusing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Peer() as peer, pool_of() as pool:
        with resolving(monkeypatch, "::1", *REFUSING, "127.0.0.1"), takes(0.0):
            assert (await pool.connect(f"{NAME}:{peer.port}", 2)).local_ip == "127.0.0.1"


async def test_every_address_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Peer() as peer, pool_of() as pool:
        with resolving(monkeypatch, *REFUSING), pytest.raises(ConnectError) as caught:
            await pool.connect(f"{NAME}:{peer.port}", 2)
        assert str(caught.value).startswith(f"cannot connect to {NAME}:{peer.port}: ")
        assert "refused" in str(caught.value) or "failed" in str(caught.value)


async def test_every_address_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(connect_timeout=0.3) as pool:
        with resolving(monkeypatch, *DEAD[:2]), takes(0.3), pytest.raises(ConnectError, match=r"within 0\.3 s"):
            await pool.connect(f"{NAME}:10911", 5)


async def proven(_: str) -> None:
    """Every connection is answered on."""


async def test_slower_address_is_dropped() -> None:
    """What connects after another one has won is closed, and what has not is cancelled."""
    dropped, ended = list[str](), list[str]()

    async def connect(address: str) -> str:
        try:
            if address != "quick":
                await asyncio.sleep(0.02 if address == "slow" else 60)
            return address
        except asyncio.CancelledError:
            if address == "slow":
                return address  # it was connected in that moment
            raise
        finally:
            ended.append(address)

    assert await first_of(["never", "slow", "quick"], connect, proven, dropped.append, 0.06) == "quick"
    await asyncio.sleep(0)
    assert (dropped, sorted(ended)) == (["slow"], ["never", "quick", "slow"])


@pytest.mark.parametrize("turns", range(8))
async def test_connection_of_a_cancelled_connect_is_dropped(turns: int) -> None:
    """Also where the cancellation comes while the attempts at other addresses end."""
    made, dropped = asyncio.Event(), list[str]()

    async def connect(address: str) -> str:
        await asyncio.sleep(60 if address == "never" else 0)
        made.set()
        return address

    task = asyncio.create_task(first_of(["never", "quick"], connect, proven, dropped.append, 0.004))
    await made.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    results = await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0)
    assert [*dropped, *results].count("quick") == 1


@pytest.mark.parametrize("addresses", [["good", "bad"], ["bad", "good"]])
async def test_connection_beside_an_error_is_the_first(addresses: list[str]) -> None:
    """It is not left open where another attempt fails with an unexpected error in the same turn."""
    gate = asyncio.Event()

    async def connect(address: str) -> str:
        await gate.wait()
        if address == "bad":
            raise ValueError(address)
        return address

    asyncio.get_running_loop().call_later(0.05, gate.set)
    assert await first_of(addresses, connect, proven, [].append, 0.004) == "good"


async def test_connection_that_is_not_proved_is_dropped_after_any_error() -> None:
    dropped = list[str]()

    async def connect(address: str) -> str:
        return address

    async def prove(address: str) -> None:
        raise LookupError(address)

    with pytest.raises(LookupError, match="one"):
        await first_of(["one", "two"], connect, prove, dropped.append, 60)
    assert dropped == ["one"]


async def test_resolver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look-up holds a thread: one is enough, and each connect has a time of its own all the same."""
    asked = 0
    answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    async def look_up(*_: Any, **__: Any) -> list[Any]:
        nonlocal asked
        asked += 1
        return await asyncio.shield(answer)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    async with Peer() as peer, pool_of(connect_timeout=0.1) as pool:
        for _ in range(3):
            with pytest.raises(ConnectError, match=r"within 0\.1 s"):
                await pool.connect(f"{NAME}:{peer.port}", 5)
        with takes(0.05), pytest.raises(RequestTimeoutError):
            await pool.connect(f"{NAME}:{peer.port}", 0.05)
        assert asked == 1
        answer.set_result([(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))])
        assert (await pool.connect(f"{NAME}:{peer.port}", 5)).is_open
