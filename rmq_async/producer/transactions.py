"""Messages that are seen only when a local transaction has been committed.

The half message is sent like any other; consumers do not see it. Then the local transaction runs; its outcome goes to the broker
that stored the half message. Where none arrives, the broker asks the producers of the group (``checks``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, Unpack

import msgspec

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import ResponseCode, SysFlag
from rmq_protocol.errors import InvalidMessageError, RocketMQError, shown
from rmq_protocol.message import Message

from ..broker_answers import broker_error
from ..client.instance import ClientInstance
from ..client.text import printable
from ..client.vip import first_port
from ..config import ClientConfig
from ..errors import ClientStateError, ConfigError, TransactionError
from ..options import lists_options
from ..results import SendResult, SendStatus, TransactionSendResult, TransactionStatus
from ..timeouts import checked_timeout
from ..transport import Connection, tell, wait_until
from .checks import Check, Checks, decided, report
from .config import ProducerConfig, ProducerOptions
from .ending import End, Half, end_command, stored_half, trace_end
from .producer import Producer
from .selectors import wish_of
from .sender import LAST_STEPS, Sender

__all__ = ["Execute", "TransactionProducer"]

Execute = Callable[[Message, Any], TransactionStatus | Awaitable[TransactionStatus]]

_HALF: Final = int(SysFlag.TRANSACTION_PREPARED)


@lists_options(ProducerConfig, ClientConfig)
class TransactionProducer(Producer):
    """A producer whose messages may belong to local transactions; everything that ``Producer`` does, it does too.

    ``execute(message, arg)`` runs the local transaction of a ``send_in_transaction``, in its caller's task, once the half
    message is stored. It gets a copy of the message that has its ``unique_id``, to be kept with what the transaction writes.
    ``check(message)`` returns how a transaction ended that its broker has no end of; it may be one of another process of the
    group, or of one that is no more. Both return a TransactionStatus and may be coroutine functions; what they raise means
    UNKNOWN; brokers get, for their logs, the type of that and nothing more.

    At most ``max_concurrent_checks`` checks run at a time; up to 2000 more wait, all together with at most 64 MiB of bodies; those
    beyond are left to be asked again.

    Brokers ask only producers that they know. One that has not sent anything yet must name its ``topics`` to be known.
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
        number: Any = max_concurrent_checks
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ConfigError(f"max_concurrent_checks must be a whole number from 1 on, not {shown(number)}")
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
        """Sends a half message, runs ``execute(message, arg)``, and sends the broker its outcome.

        ``timeout``: seconds for sending the half message, as in ``send``; ``execute`` takes as long as it takes, and then the
        broker has ``request_timeout`` to confirm. COMMIT and ROLLBACK are confirmed by the broker before this returns. UNKNOWN
        is sent and not confirmed; the broker asks later. A half message that is stored but not SEND_OK is rolled back, and
        nothing is executed.

        What ``execute`` raises is reported to the loop's exception handler and returned as ``local_error``, with UNKNOWN.

        Raises InvalidMessageError for a message with a delay, and as ``send`` does while nothing has been executed. Raises
        TransactionError when COMMIT or ROLLBACK was refused or not confirmed; nothing is tried again, the broker asks. Raises
        ClientStateError when the producer stops before ``execute`` has ended, which is cancelled then. A call that is
        cancelled while ``execute`` runs leaves its transaction UNKNOWN; one that is cancelled later may have had its COMMIT or
        ROLLBACK carried out.
        """
        sender, checks = self._usable(), self._checks
        assert checks is not None
        started = monotonic()
        deadline = started + (sender.timeout if timeout is None else checked_timeout(timeout))
        sender.encoder.check(message)
        if message.delay_level or message.delay is not None or message.deliver_at is not None:
            raise InvalidMessageError(
                "a message of a transaction cannot be delayed: it is seen when it is committed; leave out delay_level, "
                "delay and deliver_at"
            )
        group = sender.producer_group
        outgoing = sender.encoder.encode(message, {"TRAN_MSG": "true", "PGROUP": group}, _HALF)
        if sender.watched:
            sender.watch(outgoing, message, "sync", stored_half)
        wish, born_from = wish_of(message, None, None, None), int(sender.encoder.born_ms())
        with self._counted():
            half = await sender.deliver(outgoing, message, wish, 1, len(message.body), stored_half, started, deadline)
            end = End(
                topic=sender.instance.names.wire(message.topic),
                group=group,
                broker=half.queue.broker_name,
                msg_id=half.msg_id,
                transaction_id=half.transaction_id,
                queue_offset=half.queue_offset,
                log_offset=half.log_offset,
            )
            # An id that the caller chose may be that of several messages: this one is known by its body, and its time.
            chosen = None if message.unique_id is None else (bytes(message.body), born_from)
            asks = self._first_port(sender, half.address)
            with checks.ending(asks, end, chosen):
                status, error = TransactionStatus.ROLLBACK, None
                if half.status is SendStatus.SEND_OK:
                    status, error = await self._local(sender, half, end, message, arg)
                result = TransactionSendResult(**_common(half), local_status=status, local_error=error)
                trace_end(sender.tracer, message, end, status, half.address, half.region_id)
                if status is TransactionStatus.UNKNOWN:
                    self._tell_unknown(sender, half, end, _why(error))
                    return result
                log_offset, asking = end.log_offset, sender.connections.get(asks)
                confirmed = await self._end(sender, half, end, result)
                checks.ended(confirmed if asks == half.address else asking, end, log_offset, known=chosen is None)
            return result

    # -- inside

    async def _local(
        self, sender: Sender, half: Half, end: End, message: Message, arg: Any
    ) -> tuple[TransactionStatus, Exception | None]:
        own = msgspec.structs.replace(message, unique_id=half.msg_id)
        try:
            status, error = await decided(self._execute, own, arg, waiting=sender.unless_stopped)
            if error is not None and sender.closed:
                raise ClientStateError(
                    f"the producer was stopped while transaction {half.msg_id} was executed; the broker will ask about it"
                ) from error
        except BaseException as ended:
            self._tell_unknown(sender, half, end, _why(ended))
            raise
        if error is not None:
            report(self._execute, error)
        return status, error

    def _first_port(self, sender: Sender, address: str) -> str:
        """Where a broker is that has stored a message at ``address``: it asks on the connections that have heartbeats."""
        return first_port(address) if sender.instance.config.vip_channel else address

    def _tell_unknown(self, sender: Sender, half: Half, end: End, why: str | None) -> None:
        """At once or not at all: it only explains the question in the broker's log."""
        connection = sender.connections.get(half.address)
        if connection is not None:
            tell(connection, end_command(end, TransactionStatus.UNKNOWN, why))

    async def _end(self, sender: Sender, half: Half, end: End, result: TransactionSendResult) -> Connection:
        """Returns the connection on which the broker has confirmed it."""
        status, address = result.local_status, half.address
        deadline = monotonic() + sender.instance.config.request_timeout
        command = end_command(end, status)
        try:
            connection, response = await sender.unless_stopped(_ask(sender, address, command, deadline))
        except RocketMQError as failed:
            why, code, remark = failed, None, ""
            maybe_ended = failed.maybe_stored or isinstance(failed, ClientStateError)
            told = f"was not confirmed: {failed}"
        else:
            if response.code == ResponseCode.SUCCESS:
                return connection
            why = broker_error(
                response.code, response.remark, request="END_TRANSACTION", broker=half.queue.broker_name, address=address
            )
            code, remark, maybe_ended = response.code, printable(response.remark or "", 1000), False
            told = f"was refused: {why}"
        raise TransactionError(
            f"{status.value} of transaction {half.msg_id} {told}; the broker {half.queue.broker_name} will ask group {end.group}",
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
        """Until no transaction is under way, or ``deadline`` (monotonic)."""
        if self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await wait_until(self._idle, deadline)

    # -- life

    async def _join(self, instance: ClientInstance) -> Sender:
        checks = Checks(instance, instance.names.wire(self.group), self._check, self._max_concurrent_checks)
        checks.listen()  # first: a broker may ask as soon as it knows the group
        try:
            sender = await super()._join(instance)
        except BaseException:
            await checks.close()
            raise
        checks.tracer = sender.tracer
        self._checks = checks
        return sender

    async def _drain(self, budget: float) -> None:
        deadline = monotonic() + budget
        if self._sender.tracer is not None:
            self._sender.tracer.hurry()
        try:
            try:
                await self._all_over(deadline)
            finally:
                await super()._drain(max(deadline - monotonic(), 0.0))
            await self._all_over(monotonic() + LAST_STEPS)
        finally:
            if self._checks is not None:
                await self._checks.close()


async def _ask(sender: Sender, address: str, command: RemotingCommand, deadline: float) -> tuple[Connection, RemotingCommand]:
    """Once more, over a new connection, where the broker sends us away: so it has not looked at the request."""
    for again in (True, False):
        connection = sender.connections.get(address) or await sender.pool.connect(address, max(deadline - monotonic(), 0.0))
        response = await connection.request(command, max(deadline - monotonic(), 0.0))
        if not again or response.code != ResponseCode.GO_AWAY:
            break
    return connection, response


def _common(half: Half) -> dict[str, Any]:
    """What of a stored half message is for its caller."""
    return {name: getattr(half, name) for name in SendResult.__struct_fields__}


def _why(error: BaseException | None) -> str | None:
    """The remark for a broker's log, where an error's own words, which may hold data, do not belong."""
    return f"execute: {type(error).__name__}" if error is not None else None
