"""Transactional messages, which consumers see only after a local transaction has been committed.

The half message is sent like any other message, but consumers do not see it. Then the local transaction runs, and its outcome is
sent to the broker that stored the half message. If the broker receives no outcome, it asks a producer of the group for it
(``checks``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Unpack

import msgspec

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import ResponseCode, SysFlag
from rmq_protocol.errors import InvalidMessageError, RocketMQError, shown
from rmq_protocol.message import Message

from ... import machine
from ..._asyncio import wait_until
from ..._backoff import Backoff
from ..._functions import check_arguments, is_generator
from ..._text import printable
from ...broker_answers import broker_error, is_unreplicated
from ...client import ClientInstance, Replication, first_port, vip_address
from ...config import ClientConfig
from ...errors import ClientStateError, ConfigError, ConnectError, RequestTimeoutError, TransactionError
from ...options import lists_options
from ...results import SendResult, SendStatus, TransactionSendResult, TransactionStatus
from ...timeouts import checked_timeout
from ...tracebacks import without_frames
from ...transport import Connection, send_control
from ..begin import deliver
from ..calls import Call, connect_cap
from ..config import ProducerConfig, ProducerOptions
from ..core import LAST_STEPS, ProducerCore
from ..producer import Producer
from ..routing import choice_of
from .checks import Check, Checks, decided, report
from .end_transaction import End, Half, end_command, stored_half, trace_end

Execute = Callable[[Message, Any], TransactionStatus | Awaitable[TransactionStatus]]

_HALF: Final = int(SysFlag.TRANSACTION_PREPARED)
_BUSY: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 0.5
"""Maximum seconds between two attempts to end a transaction at a busy broker."""


@lists_options(ProducerConfig, ClientConfig)
class TransactionProducer(Producer):
    """A ``Producer`` that also sends messages that belong to local transactions.

    ``execute(message, arg)`` runs the local transaction of a ``send_in_transaction`` in the caller's task, after the half message
    is stored. Its ``message`` is a copy with the ``unique_id`` set, so that the id can be stored with the data of the transaction.
    ``check(message)`` returns the status of a transaction for which the broker has received no outcome. The transaction may have
    been started by another process of the group, which may have exited. Both functions return a TransactionStatus and may be
    coroutine functions. If a function raises an error, the status is UNKNOWN; brokers receive only the type of the error, for their
    logs.

    At most ``max_concurrent_checks`` checks run at a time, and up to 2000 more wait. Together they hold at most 64 MiB of messages;
    a single larger message is accepted while there are no others. Checks beyond these limits are dropped, and the broker repeats
    them (``transactionCheckMax``).

    A broker sends checks only to producers that it knows from their heartbeats. If a producer must receive checks before it sends a
    message, pass ``topics``, so that the brokers of these topics know it.

    Raises:
        TypeError: If ``execute`` or ``check`` is not callable with these arguments, or for the reasons of ``Producer``.
        ConfigError: If ``max_concurrent_checks`` is not an integer above 0, or for the reasons of ``Producer``.
    """

    def __init__(
        self,
        group: str,
        *,
        execute: Execute,
        check: Check,
        max_concurrent_checks: int = 32,
        namesrv: str | Sequence[str] | None = None,
        client: ClientConfig | None = None,
        config: ProducerConfig | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        for name, function in (("execute", execute), ("check", check)):
            if not callable(function):
                raise TypeError(f"{name} must be a function, not {shown(function)}")
            if is_generator(function):
                raise TypeError(f"{name} must not be a generator function, because a call would not run it: {shown(function)}")
        check_arguments("execute", execute, "message", "arg")
        check_arguments("check", check, "message")
        number: Any = max_concurrent_checks
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ConfigError(f"max_concurrent_checks must be an integer of at least 1, not {shown(number)}")
        super().__init__(group, namesrv=namesrv, client=client, config=config, **options)
        self._execute = execute
        self._check = check
        self._max_concurrent_checks = number
        self._checks: Checks | None = None
        self._under_way = 0
        self._idle: asyncio.Future[None] | None = None

    async def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout: float | None = None
    ) -> TransactionSendResult:
        """Send a half message, run ``execute(message, arg)``, and send its outcome to the broker.

        The call returns after the broker has confirmed COMMIT or ROLLBACK. UNKNOWN is sent without confirmation, and the broker
        checks the transaction later. If the half message is stored with a status other than SEND_OK, it is rolled back and
        ``execute`` is not called.

        If ``execute`` raises an error, the error is reported to the loop's exception handler, and the result has the status UNKNOWN
        and the error in ``local_error``. If the call is cancelled during ``execute``, its transaction stays UNKNOWN. If it is
        cancelled later, COMMIT or ROLLBACK may have taken effect.

        Args:
            arg: The second argument of ``execute``.
            timeout: Seconds to send the half message, as in ``send``. ``execute`` has no time limit. After ``execute``, the broker
                has ``request_timeout`` seconds to confirm the outcome.

        Raises:
            InvalidMessageError: If the message is delayed, has a lite topic or a priority, or is otherwise invalid.
            ClientStateError: If the producer stops before ``execute`` has ended. ``execute`` is then cancelled. ``maybe_stored`` is
                True if the half message is stored, so that the broker will check the transaction.
            TransactionError: If COMMIT or ROLLBACK was refused or not confirmed. The broker will check the transaction unless the
                request took effect.
            RocketMQError: Other errors of ``send``, which are raised before ``execute`` is called.
        """
        sender, checks = self._usable(), self._checks
        assert checks is not None
        started = machine.monotonic()
        deadline = started + (sender.timeout if timeout is None else checked_timeout(timeout))
        sender.encoder.check(message)
        if message.delay_level or message.delay is not None or message.deliver_at is not None:
            raise InvalidMessageError(
                "a message of a transaction cannot be delayed, because it is delivered when it is committed; do not set "
                "delay_level, delay and deliver_at"
            )
        if message.lite_topic is not None or message.priority is not None:
            what = "priority" if message.lite_topic is None else "lite_topic"
            raise InvalidMessageError(
                f"a message of a transaction cannot have a {what}, which brokers would ignore; leave it out"
            )
        group = sender.producer_group
        outgoing = sender.encoder.encode(message, {"TRAN_MSG": "true", "PGROUP": group}, _HALF)
        if sender.watched:
            sender.watchers.watch(outgoing, message, "sync", stored_half)
        choice, born_from = choice_of(message, None, None, None), int(sender.encoder.born_ms())
        call = Call(outgoing, stored_half, started, deadline, sender.retries, message, choice, len(message.body))
        with self._counted():
            half = await deliver(sender, call)
            end = End(
                topic=sender.instance.names.wire(message.topic),
                group=group,
                broker=half.queue.broker_name,
                msg_id=half.msg_id,
                transaction_id=half.transaction_id,
                queue_offset=half.queue_offset,
                log_offset=half.log_offset,
            )
            # Several messages may have an id that the caller chose, so body and born time identify this one.
            chosen = None if message.unique_id is None else (bytes(message.body), born_from)
            asks = self._first_port(sender, half.address)
            with checks.ending(asks, end, chosen):
                status, error = TransactionStatus.ROLLBACK, None
                if half.status is SendStatus.SEND_OK:
                    status, error = await self._local(sender, half, end, message, arg)
                result = TransactionSendResult(**_common(half), local_status=status, local_error=error)
                trace_end(sender.tracer, message, end, status, half.address, half.region_id)
                if status is TransactionStatus.UNKNOWN:
                    self._send_unknown(sender, half, end, _why(error))
                    return result
                log_offset, asking = end.log_offset, sender.connections.get(asks)
                confirmed = await self._end(sender, half, end, result)
                checks.ended(confirmed if asks == half.address else asking, end, log_offset, known=chosen is None)
            return result

    # -- inside

    async def _local(
        self, sender: ProducerCore, half: Half, end: End, message: Message, arg: Any
    ) -> tuple[TransactionStatus, Exception | None]:
        own = msgspec.structs.replace(message, unique_id=half.msg_id)
        try:
            status, error = await decided(self._execute, own, arg, waiting=sender.unless_stopped)
            if error is not None and sender.closed:
                raise _stopped_during_execute(half) from error
        except BaseException as ended:
            self._send_unknown(sender, half, end, _why(ended))
            raise
        if error is not None:
            report(self._execute, error)
        return status, error

    def _first_port(self, sender: ProducerCore, address: str) -> str:
        """Return the regular address of a broker, not its VIP port: checks arrive on connections with heartbeats, which use the
        regular port.
        """
        return first_port(address) if sender.instance.config.vip_channel else address

    def _send_unknown(self, sender: ProducerCore, half: Half, end: End, why: str | None) -> None:
        """Send UNKNOWN without waiting, if the connection is open. The broker writes the reason to its log."""
        connection = sender.connections.get(half.address)
        if connection is not None:
            send_control(connection, end_command(end, TransactionStatus.UNKNOWN, why))

    async def _end(self, sender: ProducerCore, half: Half, end: End, result: TransactionSendResult) -> Connection:
        """Send COMMIT or ROLLBACK and return the connection on which the broker confirmed it.

        Raises:
            TransactionError: If the broker refuses the request or does not confirm it.
        """
        status, address = result.local_status, half.address
        deadline = machine.monotonic() + sender.instance.config.request_timeout
        try:
            connection, response = await sender.unless_stopped(_ask(sender, half, lambda: end_command(end, status), deadline))
        except RocketMQError as failed:
            why, code, remark = without_frames(failed), None, ""
            maybe_ended = failed.maybe_stored or isinstance(failed, ClientStateError)
            outcome = f"was not confirmed: {failed}"
        else:
            if response.code == ResponseCode.SUCCESS:
                return connection
            why = broker_error(
                response.code, response.remark, request="END_TRANSACTION", broker=half.queue.broker_name, address=address
            )
            code, remark = response.code, printable(response.remark or "", 1000)
            maybe_ended = is_unreplicated(code, response.remark)
            if maybe_ended:
                await sender.instance.replication.learn(connection, deadline)
                maybe_ended = not Replication.counts_first(connection)
            outcome = f"was refused: {why}"
        raise TransactionError(
            f"{status.value} of transaction {half.msg_id} {outcome}; "
            f"unless it took effect, broker {half.queue.broker_name} will send a check to group {end.group}",
            result=result,
            maybe_ended=maybe_ended,
            maybe_stored=status is TransactionStatus.COMMIT,
            remark=remark,
            code=code,
            broker=half.queue.broker_name,
            address=address,
        ) from why

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way and self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

    async def _all_over(self, deadline: float) -> None:
        """Wait until no transaction is running, or until ``deadline`` (monotonic)."""
        if self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await wait_until(self._idle, deadline)

    # -- life cycle

    async def _join(self, instance: ClientInstance) -> ProducerCore:
        checks = Checks(instance, instance.names.wire(self.group), self._check, self._max_concurrent_checks)
        checks.listen()  # first: a broker may send checks as soon as it knows the group
        try:
            sender = await super()._join(instance)
        except BaseException:
            await checks.close()
            raise
        checks.tracer = sender.tracer
        self._checks = checks
        return sender

    async def _drain(self, budget: float) -> None:
        deadline = machine.monotonic() + budget
        if self._sender.tracer is not None:
            self._sender.tracer.hurry()
        try:
            try:
                await self._all_over(deadline)
            finally:
                await super()._drain(max(deadline - machine.monotonic(), 0.0))
            await self._all_over(machine.monotonic() + LAST_STEPS)
        finally:
            if self._checks is not None:
                await self._checks.close()


async def _ask(
    sender: ProducerCore, half: Half, command: Callable[[], RemotingCommand], deadline: float
) -> tuple[Connection, RemotingCommand]:
    """Send a request that ends a transaction.

    Repeat the request if the broker responds that it has not processed it: once after GO_AWAY, and until ``deadline`` while the
    broker is busy.

    Args:
        command: Returns the request, with the newest offsets of the half message.
    """
    pauses, gone = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), False
    while True:
        connection = await _connected(sender, half, deadline)
        response = await connection.request(command(), max(deadline - machine.monotonic(), 0.0))
        if response.code == ResponseCode.GO_AWAY and not gone:
            gone = True
            continue
        pause = pauses.next()
        if response.code not in _BUSY or machine.monotonic() + pause > deadline:
            return connection, response
        await asyncio.sleep(pause)


async def _connected(sender: ProducerCore, half: Half, deadline: float) -> Connection:
    """Return a connection to the broker of a half message, at its newest address if it has moved."""
    address = _newest_address(sender, half)
    if (connection := sender.connections.get(address)) is not None:
        return connection
    left = deadline - machine.monotonic()
    try:
        return await sender.pool.connect(address, max(connect_cap(left), 0.0))
    except (ConnectError, RequestTimeoutError) as error:
        await sender.topics.renew(half.queue.topic, deadline)
        newest = _newest_address(sender, half)
        if newest == address and isinstance(error, ConnectError):
            raise
    return await sender.pool.connect(newest, max(deadline - machine.monotonic(), 0.0))


def _newest_address(sender: ProducerCore, half: Half) -> str:
    """Return the newest known address of a half message's broker.

    If no route names the broker, return the address at which the message was stored.
    """
    address = sender.instance.routes.address_of(half.queue.broker_name)
    if address is None:
        return half.address
    return vip_address(address) if sender.instance.config.vip_channel else address


def _stopped_during_execute(half: Half) -> ClientStateError:
    error = ClientStateError(
        f"the producer was stopped during execute of transaction {half.msg_id}, so the broker will check the transaction; use a "
        "longer stop_timeout"
    )
    error.maybe_stored = True
    return error


def _common(half: Half) -> dict[str, Any]:
    """Return the fields of a stored half message that belong to a ``SendResult``."""
    return {name: getattr(half, name) for name in SendResult.__struct_fields__}


def _why(error: BaseException | None) -> str | None:
    """Return the remark for the broker's log, or None without an error.

    The remark contains only the type of the error, because the text may contain data.
    """
    return f"execute: {type(error).__name__}" if error is not None else None
