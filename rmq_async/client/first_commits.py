"""The order of a group's concurrent commits: the first commit is sent alone, and the others are sent after its response.

A broker keeps the offsets of a group and topic in one table, which the first commit creates. If two commits find no table, each
creates one, and one table replaces the other together with its offset, although the broker responds to both commits with success
(``ConsumerOffsetManager.commitOffset`` of 4.9 to 5.5). In a test with 300 new groups and eight concurrent commits each, 3 groups
lost offsets on 4.9.7 (up to seven of the eight), and 1 group did so on 5.5.0.

The table is lost if its topic is deleted or if a broker crashes before it has written the table, and a replica that becomes the
master may not have it. A client does not learn of this. Therefore a response proves that the table exists only for the commits that
wait for this response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from .._asyncio import wait_until
from ..errors import RequestTimeoutError


class _Table:
    """The offsets of a group and topic on one broker, while commits of them are in progress.

    Attributes:
        exists: Whether one of these commits has succeeded.
        turn: Done when the commit that is sent alone has ended. None if no commit is being sent alone.
    """

    __slots__ = ("commits", "exists", "turn")

    def __init__(self) -> None:
        self.commits = 0
        self.exists = False
        self.turn: asyncio.Future[None] | None = None


class FirstCommits:
    """Orders the concurrent commits of each group and topic on each broker."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str, str], _Table] = {}

    def __len__(self) -> int:
        return len(self._tables)

    async def commit(self, key: tuple[str, str, str], send: Callable[[], Awaitable[None]], deadline: float) -> None:
        """Await ``send()``, which sends the request of a commit.

        Concurrent commits with the same key are sent one at a time until one of them has succeeded. Errors of ``send`` are raised
        unchanged.

        Args:
            key: Group, topic and broker name.

        Raises:
            RequestTimeoutError: If the commit cannot be sent before ``deadline`` (monotonic), because an earlier commit is
                unanswered.
        """
        table = self._tables.setdefault(key, _Table())
        table.commits += 1
        try:
            while table.turn is not None and not table.exists:
                if not await wait_until(table.turn, deadline):
                    raise RequestTimeoutError(
                        f"UPDATE_CONSUMER_OFFSET to {key[2]}: not sent in time, because an earlier commit of group "
                        f"{key[0]} to topic {key[1]} was not answered; commit again",
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
