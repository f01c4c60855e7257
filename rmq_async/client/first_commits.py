"""First commits of a group: one alone, then the others at once.

A broker keeps the offsets of a group and topic in one table, made by the first commit. Two commits that find none each make
one, and one of the tables replaces the other, after both were answered with success (``ConsumerOffsetManager.commitOffset`` of
4.9 to 5.5). Of 300 new groups with eight commits at once, 3 lost offsets on 4.9.7, up to seven of the eight, and 1 on 5.5.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakValueDictionary

__all__ = ["FirstCommits"]

MAX_KNOWN: Final = 4096

_Key = tuple[str, str, str]


class FirstCommits:
    """The known tables of offsets, by group, topic and broker: the last ``MAX_KNOWN`` to which this client has committed."""

    def __init__(self) -> None:
        self._known: dict[_Key, None] = {}
        self._turns: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()

    async def commit(self, key: _Key, send: Callable[[], Awaitable[None]]) -> None:
        """Awaits ``send``, the request of a commit: alone until a commit to the same table was answered. Raises its error."""
        if key not in self._known:
            turn = self._turns.get(key)
            if turn is None:
                turn = self._turns[key] = asyncio.Lock()
            async with turn:
                if key not in self._known:
                    await send()
                    self._add(key)
                    return
        await send()

    def _add(self, key: _Key) -> None:
        self._known[key] = None
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
