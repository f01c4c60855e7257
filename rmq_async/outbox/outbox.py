"""The class ``Outbox``: adds messages to transactions, and starts and stops the relay that sends them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

from rmq_protocol.errors import shown
from rmq_protocol.message import Message

from .. import machine
from .._asyncio import Startable
from .._database import Session, check_transactional, checked_session
from .._functions import check_plain
from .._loops import Turns
from .._text import type_name
from ..client import UniqueIds
from ..config import check_flag, check_seconds
from ..errors import ClientStateError, ConfigError
from ..producer import Producer, ProducerState, check_here
from .handover import Additions
from .relay import Relay, is_owned, relay_once
from .rows import StuckMessage, as_added, row_of
from .settings import Settings
from .store import OutboxStatus, Store
from .table import outbox_table


class Outbox(Startable):
    """Sends messages after the commit of the transaction in which they were added. If the transaction is rolled back, they are
    not sent.

        outbox = Outbox(engine, producer)
        async with outbox:
            async with async_sessionmaker(engine).begin() as session:
                session.add(order)
                await outbox.add(session, Message("OrderTopic", b"order 17"))

    A message is stuck if it was added more than ``stuck_after`` seconds ago and is not sent, has failed ``stuck_attempts``
    times (1 to 2^31), or is FAILED. All numbers of seconds must be above 0 and below 10^9.

    The methods also raise the errors of the database: SQLAlchemyError, and OSError or an error of the driver if the database
    cannot be reached.

    Args:
        engine: An AsyncEngine for PostgreSQL (asyncpg) or a SQLite file (aiosqlite); it may be the service's own.
        producer: If the producer is not started, ``start`` starts it in the background and repeats the attempt until it
            succeeds, and ``stop`` stops the producer. If several outboxes share the producer, the ``stop`` of the last outbox
            stops it.
        table: Name of the table, at most 40 bytes in UTF-8, or "schema.name".
        lease: Seconds for which a claimed row is reserved for the process that claimed it. After that, another process may send
            the row. One send takes at most half a lease.
        poll_interval: Seconds between queries for due rows; the interval is longer if a query is slow. It is also the pause
            after a row's first failure. The pause doubles with each further failure, up to 15 s, and is randomly shortened by
            up to a fifth.
        batch_size: Number of rows that are read at a time, 1 to 10,000. About four times as many rows are held in memory.
        on_stuck: Called on the loop for each stuck message, once every ``stuck_period`` seconds, by one of the running outboxes
            of the table. If None, a warning is logged instead.
        on_status: Called every ``status_interval`` seconds, for metrics. If None, there are no such calls.

    Raises:
        ConfigError: For invalid settings, and for a database other than PostgreSQL or a SQLite file.
        TypeError: For a callback that does not take one argument.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        producer: Producer,
        *,
        table: str = "rmq_outbox",
        lease: float = 30.0,
        poll_interval: float = 1.0,
        batch_size: int = 256,
        stuck_after: float = 60.0,
        on_stuck: Callable[[StuckMessage], None] | None = None,
        stuck_attempts: int = 10,
        stuck_period: float = 600.0,
        on_status: Callable[[OutboxStatus], None] | None = None,
        status_interval: float = 10.0,
    ) -> None:
        if not isinstance(producer, Producer):
            raise ConfigError(f"producer must be a Producer, not {type_name(producer)}")
        for name, callback in (("on_stuck", on_stuck), ("on_status", on_status)):
            if callback is not None:
                check_plain(name, callback, "message" if callback is on_stuck else "status")
        self._settings = Settings(
            lease=lease,
            poll_interval=poll_interval,
            batch_size=batch_size,
            stuck_after=stuck_after,
            stuck_attempts=stuck_attempts,
            stuck_period=stuck_period,
            status_interval=status_interval,
        )
        self.metadata = MetaData()
        """Holds only the table of the outbox, for use as Alembic's ``target_metadata``."""
        self._table = outbox_table(self.metadata, table)
        self._producer = producer
        self._on_stuck = on_stuck
        self._on_status = on_status
        self._me = f"{socket.gethostname()[:32]}:{machine.process_id()}:{machine.entropy.getrandbits(48):012x}"
        self._store = Store(engine, self._table, self._me, lease)
        self._ids = _Ids()
        self._relay: Relay | None = None
        self._sent_before = 0
        self._changing = Turns()

    def __repr__(self) -> str:
        return f"<Outbox {self._table.fullname} of {self._producer.group}, {'running' if self._relay else 'not running'}>"

    # -- the table

    async def create_table(self) -> None:
        """Create the table and its indexes if there is no table with that name. An existing table is not changed."""
        await self._store.create_table()

    # -- adding

    async def add(self, session: AsyncSession | async_scoped_session[Any] | AsyncConnection, message: Message) -> int:
        """Add the message to the session's transaction and return the id of its row.

        If this outbox is running, it sends a message that was added through an AsyncSession right after the commit. In the
        following cases, a relay finds and sends the message at its next query instead: the message was added through an
        AsyncConnection, on another loop, or while the outbox or its producer was not running; the outbox holds the maximum
        number of rows; or the last sends to the topic failed.

        ``delay`` counts from the call. A message with a sharding key is sent after the earlier messages with the same key and
        topic. All copies of the message have the same ``unique_id``: the message's own ``unique_id``, or a new one.

        Raises:
            InvalidMessageError: For a message that ``Producer.send`` would refuse, a ``unique_id`` of more than 255 characters,
                a sharding key of more than 2000 bytes, and a delivery outside the years 1970 to 9999.
            ConfigError: For a table that is missing or lacks a column, and for a session at the isolation level AUTOCOMMIT.
            TypeError: If ``message`` is not a Message, or ``session`` is neither a session nor a connection.
        """
        try:
            return await self._add(session, message)
        except (ProgrammingError, OperationalError) as error:
            self._store.check_is_there(error)
            raise

    async def _add(self, session: Session, message: Message) -> int:
        session = checked_session(session)
        relay = self._relay
        until = machine.monotonic() + self._settings.lease
        now = machine.time()
        values = row_of(message, self._ids.of_thread.next(), now, self._producer.config.max_message_size)
        statements = self._store.statements
        check_transactional(session, "an outbox")
        if relay is None or not isinstance(session, AsyncSession) or not relay.takes(message.topic, session):
            return _id_of(await session.execute(statements.add_pending, values))
        values |= {"owner": self._me, "lease_seconds": self._settings.lease}
        row = _id_of(await session.execute(statements.add_sending, values))
        sync = session.sync_session
        Additions.of(sync).add(sync, as_added(row, message, values, until), relay.hand_over)
        return row

    # -- start and stop

    async def start(self) -> None:
        """Start the relay, which sends rows in the background.

        The call has no effect if the outbox is running.

        Raises:
            ConfigError: For a table that is missing or lacks a column.
            WrongLoopError: If the outbox or its producer runs on another loop.
            ForkedError: If the outbox or its producer was started in the parent process.
        """
        async with self._turn():
            if self._relay is not None and self._relay.is_here():
                return
            check_here(self._producer)
            await self._store.probe()
            relay = Relay(
                self._store,
                self._producer,
                self._settings,
                own_producer=self._producer.state in (ProducerState.NEW, ProducerState.STOPPED) or is_owned(self._producer),
                on_stuck=self._on_stuck,
                on_status=self._on_status,
            )
            relay.start()
            self._relay = relay

    async def stop(self, timeout: float | None = None) -> None:
        """Stop taking rows, and wait up to ``timeout`` seconds (default: the producer's ``stop_timeout``) for sends in flight.

        Rows whose send has not begun are released. Rows that are still in flight after the timeout are sent again when their
        lease expires, so their messages may be stored twice. ``add`` still works: other relays send the messages, or this
        outbox sends them after its next start.

        Raises:
            ConfigError: For a timeout that is negative, is not a number of seconds, or is 10^9 s or more.
            WrongLoopError: If the outbox runs on another loop.
            ForkedError: If the outbox was started in the parent process.
        """
        budget = self._producer.config.stop_timeout if timeout is None else timeout
        check_seconds("timeout", budget, zero=True)
        async with self._turn():
            relay = self._relay
            if relay is not None:
                here = relay.is_here()
                try:
                    if here:
                        await relay.stop(budget)
                finally:
                    self._sent_before += relay.sending.sent
                    self._relay = None

    aclose = stop

    def _turn(self) -> asyncio.Lock:
        """Return the lock under which starts and stops run one at a time. Raise the errors of ``Relay.is_here``."""
        if self._relay is not None:
            self._relay.is_here()
        return self._changing.here()

    # -- status and maintenance

    @property
    def sent_here(self) -> int:
        """Number of messages from this outbox object that brokers have stored with status SEND_OK. Messages that other relays
        of the table sent are not counted.
        """
        relay = self._relay
        return self._sent_before + (0 if relay is None else relay.sending.sent)

    async def relay_once(self) -> int:
        """Send up to ``batch_size`` due rows and return the number of messages that brokers have stored with status SEND_OK.

        The producer must be running. The outbox does not have to be running.

        Raises:
            ClientStateError: If the producer does not run.
            WrongLoopError: If the producer runs on another loop.
            ForkedError: If the producer was started in the parent process.
        """
        if self._producer.state is not ProducerState.RUNNING:
            raise ClientStateError(
                f"relay_once() needs a running producer, {self._producer.group} is {self._producer.state.value}; start it first"
            )
        check_here(self._producer)
        sent = await relay_once(self._store, self._producer, self._settings)
        self._sent_before += sent
        return sent

    async def status(self) -> OutboxStatus:
        """Return the number of rows in each state, including sent rows that are not purged yet."""
        return await self._store.status()

    async def retry(self, ids: Iterable[int] | None = None) -> int:
        """Make rows due now, set their ``attempts`` to 0, and return the number of these rows.

        Args:
            ids: Ids of rows. Rows that are neither FAILED nor waiting for an attempt are not changed. None stands for all
                FAILED rows.

        Raises:
            TypeError: For an id that is not an integer.
        """
        chosen = None if ids is None else _checked_ids(ids)
        count = await self._store.retry(chosen)
        if self._relay is not None:
            self._relay.look()
        return count

    async def purge(self, older_than: float, *, failed: bool = False) -> int:
        """Delete rows that were sent more than ``older_than`` seconds ago, and return their number. Each transaction deletes up
        to a thousand rows.

        Args:
            failed: True instead deletes the rows that have been FAILED for more than ``older_than`` seconds. Their messages are
                lost.

        Raises:
            ConfigError: For a time that is negative, is not a number of seconds, or is 10^9 s or more.
        """
        check_seconds("older_than", older_than, zero=True)
        check_flag("failed", failed)
        return await self._store.purge(older_than, failed=failed)


class _Ids(threading.local):
    """The generator of unique ids, one for each thread, because the loops of several threads may add messages at the
    same time.
    """

    def __init__(self) -> None:
        # The ids of a producer begin with an address that is known only after it has connected. The ids made here begin with a
        # loopback address that has 24 random bits instead. The process id and 32 random bits follow, as in every unique id.
        self.of_thread = UniqueIds(b"\x7f" + machine.entropy.randbytes(3))


def _id_of(result: Any) -> int:
    found: int = result.inserted_primary_key[0]
    return found


def _checked_ids(ids: Iterable[int]) -> list[int]:
    if not isinstance(ids, Iterable):
        raise TypeError(f"ids must be an iterable of row ids, such as a list, or None for all FAILED rows, not {shown(ids)}")
    chosen = list(ids)
    for each in chosen:
        if not isinstance(each, int) or isinstance(each, bool):
            raise TypeError(f"the id of a row must be a whole number, not {shown(each)}")
    return chosen
