"""What a test may leave behind: nothing. For the conftest of each room."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable
from time import monotonic
from typing import Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing import FaultProxy

from . import held_ports
from .waiting import limit

__all__ = ["made_of", "nothing_is_left", "sockets", "start_twice_at_once"]


def sockets() -> set[int]:
    """Descriptors of this process that are sockets, but for ports that are held. (psutil takes milliseconds for it.)"""
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone already
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(int(name))
    return found - held_ports.descriptors()


def made_of(kinds: Iterable[type], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns a list to which every object of these classes is added when it is made."""
    things: list[Any] = []
    for kind in kinds:
        monkeypatch.setattr(kind, "__init__", _noting(kind.__init__, things))  # type: ignore[misc]
    return things


def _noting(init: Callable[..., None], things: list[Any]) -> Callable[..., None]:
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        things.append(self)

    return noted


@contextlib.asynccontextmanager
async def nothing_is_left() -> AsyncIterator[None]:
    """Fails when a task or a socket stays, and when something reached the loop's exception handler."""
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    before = sockets()
    yield
    deadline = monotonic() + limit(1.0)
    while monotonic() < deadline:
        if asyncio.all_tasks() == {asyncio.current_task()} and sockets() <= before:
            break
        await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert sockets() <= before
    gc.collect(1)
    assert not errors


async def start_twice_at_once(server: EmbeddedRocketMQ | FaultProxy, address: Callable[[], str], refused: str) -> None:
    """Fails where the second start is not ``refused`` in these words, or the port is still open after the stop."""
    outcomes = await asyncio.gather(server.start(), server.start(), return_exceptions=True)
    host, _, port = address().partition(":")
    await server.stop()
    assert outcomes[0] is None
    assert repr(outcomes[1]) == f"RuntimeError('{refused}')"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))
