"""Asking the name servers: any of them will do, as long as one answers.

They all know the same, or nearly so, and each client picks its own: the list is shuffled once and the client stays with the one
that answered last. When it fails, the others are asked inside the same call, those whose last connect just failed after the
rest, and the first to answer is the one to stay with. A server that is silent may use only its share of the time that is left,
so that with two of them the second is asked after half. A connection that breaks under a request is no verdict on the server (it
may have been restarted since): that server is asked once more at the end.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TypeVar

from rmq_protocol.command import RemotingCommand

from ..errors import BrokerError, ConnectionLostError, NameServerError, ProtocolError, RequestTimeoutError, RocketMQError
from ..transport import ConnectionPool
from .text import printable

__all__ = ["NameServers", "NoUsableAnswerError"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class NoUsableAnswerError(NameServerError):
    """At least one name server answered, and none in a way that can be used: it is not the network that is to blame."""


class NameServers:
    """``addresses``: "host:port" of each. Raises NameServerError when there are none."""

    def __init__(self, pool: ConnectionPool, addresses: Sequence[str]) -> None:
        if not addresses:
            raise NameServerError("no name server is configured: give namesrv=... or set NAMESRV_ADDR")
        self._pool = pool
        self._addresses = list(addresses)
        random.shuffle(self._addresses)
        self.patient = False
        """Requests wait for the first answer of a name server, within their time, rather than fail."""
        self.answered = asyncio.Event()
        """Set for good by the first answer."""
        self.failure: NameServerError | None = None
        """Why the newest request had no answer; None after one that had."""

    def __repr__(self) -> str:
        return f"<NameServers {', '.join(self._addresses)}>"

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of them, the one that is asked first in front."""
        return tuple(self._addresses)

    async def request(self, command: RemotingCommand, timeout: float) -> tuple[RemotingCommand, str]:
        """The first answer, of whatever code, and the address it came from.

        Raises NameServerError when none answers within ``timeout`` seconds; it tells what happened with each.
        """
        return await self.ask(command, timeout, lambda response, _: response)

    async def ask(self, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]) -> tuple[T, str]:
        """The first answer that ``read(response, address)`` accepts, and where it came from.

        What ``read`` refuses with a BrokerError or ProtocolError counts as a failure of that server. Raises NameServerError,
        or NoUsableAnswerError if some server answered, when ``timeout`` seconds are over or all have been asked.
        """
        deadline = monotonic() + timeout
        await self._first_answer(timeout)
        return await self._ask(command, deadline - monotonic(), read)

    async def probe(self, command: RemotingCommand, timeout: float) -> tuple[RemotingCommand, str]:
        """``request`` that waits for no first answer."""
        return await self._ask(command, timeout, lambda response, _: response)

    async def _ask(self, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]) -> tuple[T, str]:
        deadline = monotonic() + timeout
        failures: dict[str, RocketMQError] = {}
        answered = False
        queue = self._in_order()
        again: list[str] = []
        while queue or again:
            address = queue.pop(0) if queue else again.pop()
            left = deadline - monotonic()
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
                failures[address] = error
            except RocketMQError as error:
                failures[address] = error
            else:
                self._stay_with(address, failures)
                return result, address
        failed = self._failed(failures, answered, timeout)
        if not answered:
            self.failure = failed
        raise failed

    async def each(self, command: RemotingCommand, timeout: float) -> dict[str, RemotingCommand]:
        """The answers of all name servers, by address. Raises NameServerError unless every one of them answers."""
        answers: dict[str, RemotingCommand] = {}
        failures: dict[str, RocketMQError] = {}
        deadline = monotonic() + timeout
        await self._first_answer(timeout)
        for address in self._addresses:
            try:
                answers[address] = await self._one(address, command, max(deadline - monotonic(), 0.0))
            except RocketMQError as error:
                failures[address] = error
        if failures:
            raise self._failed(failures, bool(answers), timeout)
        return answers

    # -- inside

    async def _first_answer(self, timeout: float) -> None:
        """Waits for it where requests are to be patient. Raises NameServerError after ``timeout`` seconds."""
        if not self.patient or self.answered.is_set():
            return
        try:
            async with asyncio.timeout(timeout):
                await self.answered.wait()
        except TimeoutError:
            text = f"no name server has answered since the start, nor within {timeout:.3g} s"
            raise NameServerError(f"{text}; the last try: {self.failure}" if self.failure is not None else text) from None

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
        if answered:
            error = NoUsableAnswerError(f"no name server gave a usable answer: {tried}")
        else:
            silent = any(isinstance(error, RequestTimeoutError) for error in failures.values())
            late = silent or len(failures) < len(self._addresses)
            when = f" within {timeout:.3g} s" if late else ""
            error = NameServerError(f"no name server answered{when}: {tried}")
        error.__cause__ = cause
        return error


def _reason(error: RocketMQError | None) -> str:
    if error is None:
        return "not asked, the time was over"
    if isinstance(error, RequestTimeoutError):
        return "no answer in its share of the time" if error.maybe_stored else "no connection in its share of the time"
    if isinstance(error, BrokerError | ProtocolError):
        return f"answered, {printable(error)}"
    return printable(error)
