"""Requests to the name servers, of which any may answer.

All have nearly the same data. The list is shuffled once, and the client stays with the server that answered last. When that one
fails, the same call tries the others, those to which a connect failed a moment ago last, and the client stays with the first of
them that answers. A silent server may use only its share of the time that is left: with two servers the second is tried after half
of it. A server whose connection broke during a request (it may have been restarted since) is tried once more at the end.

A broker refuses requests for routes (3, request type not supported), which is all that distinguishes its address from that of a
name server. Where every address is a broker's, the error is permanent: nothing passes that could be waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from .. import machine
from .._text import printable
from ..errors import (
    BrokerError,
    ConnectionLostError,
    NameServerError,
    ProtocolError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
    RocketMQError,
)
from ..tracebacks import without_frames
from ..transport import ConnectionPool

__all__ = ["NameServers", "NoUsableAnswerError"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ADVICE: Final = "check the addresses, and that a name server runs"
_WANTED: Final = "give the addresses of name servers (port 9876 by default), which know those of the brokers"


class NoUsableAnswerError(NameServerError):
    """The error of a request that some name server answered, but none usably: the network is not the cause."""


class NameServers:
    """The name servers of a cluster, and the requests to them.

    ``addresses``: "host:port" of each server. Raises NameServerError when there are none.
    """

    def __init__(self, pool: ConnectionPool, addresses: Sequence[str]) -> None:
        if not addresses:
            raise NameServerError("no name server is configured: give namesrv=... or set NAMESRV_ADDR")
        self._pool = pool
        self._addresses = list(addresses)
        machine.random.shuffle(self._addresses)
        self.patient = False
        """Whether requests wait, within their timeout, for the first answer of a name server instead of failing."""
        self.answered = asyncio.Event()
        """Set by the first answer, and never cleared."""
        self.failure: NameServerError | None = None
        """Why the newest request had no answer; None after an answer, and before the first request."""
        self.on_failure: Callable[[], None] = _nothing
        """Called when a request has had no answer."""

    def __repr__(self) -> str:
        return f"<NameServers {', '.join(self._addresses)}>"

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses; that of the server in use is the first."""
        return tuple(self._addresses)

    @property
    def is_well(self) -> bool:
        """Whether the newest request was answered, and a connection to a name server is open."""
        return self.failure is None and any(self._pool.get(address) is not None for address in self._addresses)

    async def request(self, command: RemotingCommand, timeout: float) -> tuple[RemotingCommand, str]:
        """Returns the first answer, of any code, and the server's address.

        Raises NameServerError when none answers within ``timeout`` seconds.
        """
        return await self.ask(command, timeout, lambda response, _: response)

    async def ask(self, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]) -> tuple[T, str]:
        """Returns the first result of ``read(response, address)`` that is no error, and the server's address.

        A RocketMQError of ``read`` counts as a failure of that server. Raises NameServerError, or NoUsableAnswerError if some
        server answered, after ``timeout`` seconds or when all servers have failed. It is permanent if brokers are at all addresses.
        """
        deadline = machine.monotonic() + timeout
        await self._first_answer(timeout)
        return await self._ask(command, deadline - machine.monotonic(), read)

    async def probe(self, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]) -> tuple[T, str]:
        """Sends a request as ``ask`` does, but never waits for the first answer."""
        return await self._ask(command, timeout, read)

    async def _ask(self, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]) -> tuple[T, str]:
        deadline = machine.monotonic() + timeout
        failures: dict[str, RocketMQError] = {}
        answered = False
        queue = self._in_order()
        again: list[str] = []
        while queue or again:
            address = queue.pop(0) if queue else again.pop()
            left = deadline - machine.monotonic()
            if left <= 0:
                break
            share = left / (len(queue) + len(again) + 1)
            try:
                response = await self._one(address, command, share)
                answered = True
                result = read(response, address)
            except ConnectionLostError as error:
                if address not in failures:
                    again.append(address)
                failures[address] = without_frames(error)
            except RocketMQError as error:
                failures[address] = without_frames(error)
            else:
                self._stay_with(address, failures)
                return result, address
        if not answered:
            self.failure = self._failed(
                failures, answered, timeout
            )  # not the one that is raised, which gets its callers' frames
            self.on_failure()
        raise self._failed(failures, answered, timeout)

    async def each(self, command: RemotingCommand, timeout: float) -> dict[str, RemotingCommand]:
        """Returns the answers of all name servers, by address. Raises NameServerError unless all of them answer, each in its share
        of ``timeout`` seconds."""
        answers: dict[str, RemotingCommand] = {}
        failures: dict[str, RocketMQError] = {}
        deadline = machine.monotonic() + timeout
        await self._first_answer(timeout)
        for left, address in zip(range(len(self._addresses), 0, -1), tuple(self._addresses), strict=True):
            try:
                answers[address] = await self._one(address, command, max(deadline - machine.monotonic(), 0.0) / left)
            except RocketMQError as error:
                failures[address] = without_frames(error)
        if not answers:
            raise self._failed(failures, False, timeout)
        if failures:
            said = "; ".join(f"{address}: {_reason(error)}" for address, error in failures.items())
            text = f"{len(failures)} of {len(self._addresses)} name servers did not answer, and all of them must: {said}"
            raise NameServerError(f"{text}; repeat the call when they run") from next(iter(failures.values()))
        return answers

    # -- inside

    async def _first_answer(self, timeout: float) -> None:
        """Waits for the first answer if ``patient``. Raises NameServerError after ``timeout`` seconds."""
        if not self.patient or self.answered.is_set():
            return
        try:
            async with asyncio.timeout(timeout):
                await self.answered.wait()
        except TimeoutError:
            text = f"no name server has answered since the start, nor within {timeout:.3g} s"
            last = f"the last attempt: {self.failure}" if self.failure is not None else _ADVICE
            raise NameServerError(f"{text}; {last}") from None

    async def _one(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        response = await self._pool.request(address, command, timeout)
        self.answered.set()
        self.failure = None
        return response

    def _in_order(self) -> list[str]:
        first, *others = self._addresses
        return [first, *sorted(others, key=self._pool.backing_off)]

    def _stay_with(self, address: str, failures: dict[str, RocketMQError]) -> None:
        index = self._addresses.index(address)
        if index:
            said = "; ".join(f"{other}: {printable(error)}" for other, error in failures.items())
            logger.info("name server %s answers now (%s)", address, said)
            self._addresses = self._addresses[index:] + self._addresses[:index]

    def _failed(self, failures: dict[str, RocketMQError], answered: bool, timeout: float) -> NameServerError:
        said = [f"{address}: {_reason(failures.get(address))}" for address in self._addresses]
        tried = "; ".join(said)
        cause = next(iter(failures.values()), None)
        error: NameServerError
        brokers = [address for address in self._addresses if _is_of_broker(failures.get(address))]
        if len(brokers) == len(self._addresses):
            error = NoUsableAnswerError(_of_brokers(brokers), permanent=True)
        elif answered:
            error = NoUsableAnswerError(f"no name server gave a usable answer: {tried}; look at their logs")
        else:
            silent = any(isinstance(error, RequestTimeoutError) for error in failures.values())
            late = silent or len(failures) < len(self._addresses)
            when = f" within {timeout:.3g} s" if late else ""
            error = NameServerError(f"no name server answered{when}: {tried}; {_ADVICE}")
        error.__cause__ = cause
        return error


def _nothing() -> None:
    """Does nothing: the default of ``NameServers.on_failure``."""


def _is_of_broker(error: RocketMQError | None) -> bool:
    """Returns whether the error is a broker's answer to a request for a route."""
    return isinstance(error, RequestCodeNotSupportedError) and error.request == RequestCode.GET_ROUTEINFO_BY_TOPIC.name


def _of_brokers(addresses: Sequence[str]) -> str:
    if len(addresses) == 1:
        return f"{addresses[0]} is the address of a broker, not of a name server; {_WANTED}"
    return f"{', '.join(addresses)} are addresses of brokers, not of name servers; {_WANTED}"


def _reason(error: RocketMQError | None) -> str:
    if error is None:
        return "not asked, the time was over"
    if _is_of_broker(error):
        return "a broker answered, which is no name server"
    if isinstance(error, RequestTimeoutError):
        return "no answer in its share of the time" if error.maybe_stored else "no connection in its share of the time"
    if isinstance(error, BrokerError | ProtocolError):
        return f"answered, {printable(error)}"
    return printable(error)
