"""The command ``rmq outbox relay``: sends pending messages until a signal or, with --drain, until no row is left that can be
sent.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from time import monotonic
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async import ClientConfig, Producer
from rmq_async.outbox import DATABASE_ERRORS, Outbox, OutboxStatus, Store

from ..output import Output
from ..running import FAILED
from ..signals import ended_by_signal, unless
from .database import connected
from .report import Progress, message_count
from .settings import RelayOptions

_LAST_STATUS: Final = 5.0
"""Maximum seconds to read the totals at the end."""
_SHARE: Final = 10
"""The pause after a check for remaining messages lasts at least this many times as long as the check."""


async def run_relay(database: str, settings: RelayOptions, client: ClientConfig, output: Output) -> int:
    """Relay messages until SIGTERM or SIGINT or, with --drain, until no message is left that can be sent. Return the exit code.

    Raise the error if the progress cannot be written.
    """
    async with AsyncExitStack() as stack:
        ended = stack.enter_context(ended_by_signal())
        found = await unless(ended, stack.enter_async_context(connected(database, settings.table)))
        before = None if found is None else await unless(ended, found[1].status())
        if found is None or before is None:
            return _ended_early(output) if settings.drain else 0
        engine, store = found
        outbox, progress = _outbox(engine, settings, client, output, ended)
        try:
            drained = await unless(ended, _relay(outbox, store, settings))
        finally:
            await outbox.stop()
        if progress.error is not None:
            raise progress.error
        after = await _last_status(store)
        progress.totals(after)
        if not settings.drain:
            return 0
        return await _drained(store, before, after, output) if drained and after is not None else _ended_early(output)


def _outbox(
    engine: AsyncEngine, settings: RelayOptions, client: ClientConfig, output: Output, ended: asyncio.Event
) -> tuple[Outbox, Progress]:
    progress = Progress(output, lambda: outbox.sent_here, ended)
    outbox = Outbox(
        engine,
        Producer(settings.group, client=client, timeout=client.request_timeout),
        table=settings.table,
        lease=settings.lease,
        poll_interval=settings.poll_interval,
        batch_size=settings.batch_size,
        stuck_after=settings.stuck_after,
        on_stuck=progress.stuck,
        on_status=progress.status,
        status_interval=settings.every,
    )
    return outbox, progress


async def _relay(outbox: Outbox, store: Store, settings: RelayOptions) -> bool:
    """Start the outbox.

    Returns:
        True with --drain, once no message is left that can be sent. Without --drain, the call does not return.
    """
    await outbox.start()
    if not settings.drain:
        await asyncio.get_running_loop().create_future()
    while True:
        began = monotonic()
        try:
            if not await store.anything_to_send():
                return True
        except DATABASE_ERRORS:
            pass  # the relay logs that the database is unavailable, and continues
        await asyncio.sleep(max(min(settings.poll_interval, 1.0), _SHARE * (monotonic() - began)))


async def _last_status(store: Store) -> OutboxStatus | None:
    try:
        async with asyncio.timeout(_LAST_STATUS):
            return await store.status()
    except DATABASE_ERRORS:
        return None


async def _drained(store: Store, before: OutboxStatus, after: OutboxStatus, output: Output) -> int:
    failed, left = max(0, after.failed - before.failed), await store.behind_failed()
    if failed:
        output.trouble(f"outbox: {message_count(failed)} failed for good")
    if left:
        output.trouble(f"outbox: {message_count(left)} left, behind a message with the same sharding key that failed for good")
    return FAILED if failed or left else 0


def _ended_early(output: Output) -> int:
    output.trouble("outbox: ended before all messages that can be sent were sent; run it again to send the rest")
    return FAILED
