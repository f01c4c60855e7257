"""ClientUser: started and stopped in any order and with any argument, it neither hangs nor stays half one and half the other."""

from __future__ import annotations

import asyncio
import os
from time import monotonic
from typing import Any

import pytest

from rmq_async.admin import Admin
from rmq_async.client.lifecycle import ClientUser
from rmq_async.consumer import PullConsumer
from rmq_async.errors import ClientStateError, ForkedError, WrongLoopError
from rmq_async.producer import Producer

from ..support.fakes import NameServer, Peer, silence
from .support import fork

MAKERS: dict[str, Any] = {
    "producer": lambda namesrv: Producer("g", namesrv=namesrv),
    "consumer": lambda namesrv: PullConsumer("g", namesrv=namesrv),
    "admin": lambda namesrv: Admin(namesrv=namesrv),
}
USERS: dict[str, Any] = {name: MAKERS[name] for name in ("consumer", "admin")}


@pytest.mark.parametrize("name", MAKERS)
async def test_a_stop_with_a_timeout_that_is_none_changes_nothing(name: str) -> None:
    async with NameServer() as server:
        user = MAKERS[name](server.address)
        await user.start()
        running = repr(user)
        for timeout in ("2", float("nan"), -1, -(10**5000)):
            with pytest.raises((TypeError, ValueError)):
                await user.stop(timeout)
            assert repr(user) == running
        await asyncio.wait_for(user.stop(10**400), 60)
        assert "stopped" in repr(user)


@pytest.mark.virtual_time
@pytest.mark.parametrize("name", USERS)
async def test_start_stop_and_start_a_step_apart(name: str) -> None:
    async with NameServer() as server:
        user: ClientUser = USERS[name](server.address)
        calls = []
        for call in (user.start, user.stop, user.start):
            calls.append(asyncio.ensure_future(call()))
            await asyncio.sleep(0)
        assert not (await asyncio.wait(calls, timeout=2.0))[1]
        first, stopped, second = (call.exception() for call in calls)
        assert stopped is None
        assert isinstance(first, ClientStateError)
        assert "stopped while it started" in str(first)
        assert isinstance(second, ClientStateError)
        assert "stopping" in str(second)
        async with user:
            assert "running" in repr(user)
        assert "stopped" in repr(user)


@pytest.mark.virtual_time
@pytest.mark.parametrize("name", USERS)
async def test_a_stop_does_not_wait_for_a_silent_name_server(name: str) -> None:
    async with Peer(silence) as server:
        user: ClientUser = USERS[name](server.address)
        starting = asyncio.ensure_future(user.start())
        await asyncio.sleep(0.05)
        began = monotonic()
        await user.stop()
        assert monotonic() - began < 0.01
        with pytest.raises(ClientStateError, match="stopped while it started"):
            await starting


@pytest.mark.parametrize("name", USERS)
async def test_a_call_elsewhere_does_not_stop_what_is_starting_here(name: str) -> None:
    async with NameServer() as server:
        server.serve = silence
        user: ClientUser = USERS[name](server.address)
        starting = asyncio.ensure_future(user.start())
        await asyncio.sleep(0)

        async def elsewhere() -> None:
            with pytest.raises(WrongLoopError):
                await asyncio.wait_for(user.stop(), 60)

        await asyncio.to_thread(asyncio.run, elsewhere())
        child = fork()
        if child == 0:  # no loop runs here, and none is needed to be refused
            status = 1
            try:
                user.stop().send(None)
            except ForkedError:
                status = 0
            finally:
                os._exit(status)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert "starting" in repr(user)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
