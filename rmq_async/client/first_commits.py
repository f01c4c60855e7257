"""Commits of a group at once: the first one alone, then the others.

A broker keeps the offsets of a group and topic in one table, made by the first commit. Two commits that find none each make
one, and one of the tables replaces the other, after both were answered with success (``ConsumerOffsetManager.commitOffset`` of
4.9 to 5.5). Of 300 new groups with eight commits at once, 3 lost offsets on 4.9.7, up to seven of the eight, and 1 on 5.5.0.

The table goes with its topic and with a broker that crashes before it has written it, and a replica that becomes the master may
not have it. A client learns nothing of that, so an answer counts only for the commits that wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from .._asyncio import wait_until
from ..errors import RequestTimeoutError

__all__ = ["FirstCommits"]


class _Table:
    """A table of offsets, while commits to it are under way. ``exists``: one of them was answered. ``turn``: done when the commit
    that goes alone has ended; None where none does."""

    __slots__ = ("commits", "exists", "turn")

    def __init__(self) -> None:
        self.commits = 0
        self.exists = False
        self.turn: asyncio.Future[None] | None = None


class FirstCommits:
    """The tables to which commits are under way, by group, topic and broker."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str, str], _Table] = {}

    def __len__(self) -> int:
        return len(self._tables)

    async def commit(self, key: tuple[str, str, str], send: Callable[[], Awaitable[None]], deadline: float) -> None:
        """Awaits ``send``, the request of a commit: alone until a commit to the same table was answered. Raises its error.

        Raises RequestTimeoutError where its turn does not come by ``deadline`` (monotonic).
        """
        table = self._tables.setdefault(key, _Table())
        table.commits += 1
        try:
            while table.turn is not None and not table.exists:
                if not await wait_until(table.turn, deadline):
                    raise RequestTimeoutError(
                        f"UPDATE_CONSUMER_OFFSET to {key[2]}: not written by its deadline, because an earlier one was not answered",
                        maybe_stored=False,
                        broker=key[2],
                    )
            if table.exists:
                await send()
            else:
                await _send_alone(table, send)
        finally:
            table.commits -= 1
            if not table.commits:
                del self._tables[key]


async def _send_alone(table: _Table, send: Callable[[], Awaitable[None]]) -> None:
    turn = table.turn = asyncio.get_running_loop().create_future()
    try:
        await send()
        table.exists = True
    finally:
        table.turn = None
        turn.set_result(None)
