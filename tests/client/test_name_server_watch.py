"""The requests that look for name servers again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async.client import name_servers as name_servers_module
from rmq_async.client.name_servers import NameServerWatch

pytestmark = pytest.mark.virtual_time


async def test_watch_pauses_after_an_answer_whose_connection_is_lost_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_servers_module, "FIRST_WATCH_PAUSE", 0.02)
    answered = asyncio.Event()
    answered.set()

    async def same(_: float) -> bool:
        return False

    name_servers: Any = SimpleNamespace(addresses=("127.0.0.1:9876",), answered=answered, is_well=False, look_again=same)
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1

    watch = NameServerWatch(name_servers, ask)
    watch.lost("127.0.0.1:9876")
    await asyncio.sleep(0.2)
    assert 1 <= asked <= 12
    name_servers.is_well = True
    await asyncio.sleep(0)
    ended = watch.close()
    await asyncio.gather(*ended, return_exceptions=True)
