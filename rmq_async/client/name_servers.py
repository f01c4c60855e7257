"""Requests to the name servers, of which any may answer.

All have nearly the same data. The list is shuffled once, and the client stays with the server that answered last. When that one
fails, the same call tries the others, those to which a connect failed a moment ago last, and then all other addresses that the
names lead to; the client stays with the first of them that answers. A silent server may use only its share of the time that is
left: with two servers the second is tried after half of it. A server whose connection broke during a request (it may have been
restarted since) is tried once more at the end.

One server's "no" is not enough: it may have been restarted, and brokers register again within 30 s only. So ``others`` asks the
others at the same time, and ``knows_brokers`` says whether a server is a witness: one that lists no broker knows no topic either.

A broker refuses requests for routes (3, request type not supported), which is all that distinguishes its address from that of a
name server. If every address is a broker's, the error is permanent: waiting cannot help.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextvars import Context
from typing import Final, Generic, NamedTuple, TypeVar

from rmq_protocol.cluster import ClusterInfo, decode_cluster_info
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import MASTER_ID, RequestCode, ResponseCode

from .. import errors, machine
from .._backoff import Backoff
from .._text import printable
from ..broker_answers import broker_error
from ..tracebacks import without_frames
from ..transport import ConnectionPool

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ADVICE: Final = "check the addresses, and that a name server runs"
_WANTED: Final = "give the addresses of name servers (port 9876 by default), which know those of the brokers"


OTHERS_SHARE: Final = 0.5
"""Share of the time that is left for the answers of the other servers; the rest is for what follows from them."""

COMPARED_WITHIN: Final = 1.0
"""Seconds, of which the other servers get that share, to compare their answers with that of the first one: when a client starts,
and for the first route of a topic."""

SILENT_FOR: Final = 10.0
"""Seconds for which a server that gave no answer beside others is not asked beside others again: each of thousands of topics would
wait for it."""


class Answers(NamedTuple, Generic[T]):
    """What several servers said, by address.

    Attributes:
        failures: The errors of servers without a usable answer.
    """

    results: dict[str, T]
    failures: dict[str, errors.RocketMQError]


class NoUsableAnswerError(errors.NameServerError):
    """The error of a request that some name server answered, but none usably: the network is not the cause."""


class NameServers:
    """The name servers of a cluster, and the requests to them.

    Args:
        addresses: "host:port" of each server.

    Raises:
        NameServerError: When there are none.
    """

    def __init__(self, pool: ConnectionPool, addresses: Sequence[str]) -> None:
        if not addresses:
            raise errors.NameServerError("no name server is configured: give namesrv=... or set NAMESRV_ADDR")
        self._pool = pool
        self._addresses = list(addresses)
        machine.random.shuffle(self._addresses)
        self._silent: dict[str, float] = {}
        """Times (monotonic) until which servers without an answer are not asked beside the others."""
        self.patient = False
        """Whether requests wait, within their timeout, for the first answer of a name server instead of failing."""
        self.answered = asyncio.Event()
        """Set by the first answer, and never cleared."""
        self.failure: errors.NameServerError | None = None
        """Why the newest request had no answer; None after an answer, and before the first request."""
        self.on_failure: Callable[[], None] = _nothing
        """Called when a request has had no answer."""

    def __repr__(self) -> str:
        return f"<NameServers {', '.join(self._addresses)}>"

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses, the address of the server in use first."""
        return tuple(self._addresses)

    @property
    def is_well(self) -> bool:
        """Whether the newest request was answered, and a connection to a name server is open."""
        return self.failure is None and any(self._pool.get(address) is not None for address in self._addresses)

    async def request(self, command: RemotingCommand, timeout: float) -> tuple[RemotingCommand, str]:
        """Return the first answer, of any code, and the server's address.

        Raises:
            NameServerError: When none answers within ``timeout`` seconds.
        """
        return await self.ask(command, timeout, lambda response, _: response)

    async def ask(self, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]) -> tuple[T, str]:
        """Return the first result of ``read(response, address)`` that is no error, and the server's address.

        A RocketMQError of ``read`` counts as a failure of that server. It is permanent if brokers are at all addresses.

        Raises:
            NameServerError, NoUsableAnswerError: If some server answered, after ``timeout`` seconds or when all servers have
                failed.
        """
        deadline = machine.monotonic() + timeout
        await self._first_answer(timeout)
        return await self._ask(command, deadline - machine.monotonic(), read)

    async def probe(self, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]) -> tuple[T, str]:
        """Send a request as ``ask`` does, but never waits for the first answer."""
        return await self._ask(command, timeout, read)

    async def _ask(self, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]) -> tuple[T, str]:
        deadline = machine.monotonic() + timeout
        failures: dict[str, errors.RocketMQError] = {}
        answered = False
        queue, siblings = self._in_order(), self._siblings()
        again: list[str] = []
        while queue or again:
            address = queue.pop(0) if queue else again.pop()
            left = deadline - machine.monotonic()
            if left <= 0:
                break
            share = left / (len(queue) + len(again) + 1 + bool(siblings))
            try:
                response = await self._one(address, command, share)
                answered = True
                result = read(response, address)
            except errors.ConnectionLostError as error:
                if address not in failures:
                    again.append(address)
                failures[address] = without_frames(error)
            except errors.RocketMQError as error:
                failures[address] = without_frames(error)
                if isinstance(error, errors.RequestTimeoutError):
                    self._silent[address] = machine.monotonic() + SILENT_FOR
            else:
                self._stay_with(address, failures)
                return result, address
        if siblings:
            left = max(deadline - machine.monotonic(), 0.0)
            heard = await self.others("", command, left / OTHERS_SHARE, read, lambda _: True)
            for address, result in heard.results.items():
                self._stay_with(address, failures)
                return result, address
        if not answered:
            self.failure = self._failed(failures, answered, timeout)  # an error that is raised gets its callers' frames
            self.on_failure()
        raise self._failed(failures, answered, timeout)

    async def each(self, command: RemotingCommand, timeout: float) -> dict[str, RemotingCommand]:
        """Return the answers of all name servers, by address.

        Each address that a name leads to counts as one, if a connection to it can be made.

        Raises:
            NameServerError: Unless all of them answer, each in its share of ``timeout`` seconds.
        """
        answers: dict[str, RemotingCommand] = {}
        failures: dict[str, errors.RocketMQError] = {}
        deadline = machine.monotonic() + timeout
        await self._first_answer(timeout)
        queue, siblings = list(self._addresses), set[str]()
        while queue:
            address = queue.pop(0)
            share = max(deadline - machine.monotonic(), 0.0) / (len(queue) + 1)
            try:
                answers[address] = await self._one(address, command, share)
            except errors.RocketMQError as error:
                if address not in siblings or error.maybe_stored:
                    failures[address] = without_frames(error)
            others = [each for each in self._pool.siblings(address) if each not in self._addresses]
            siblings.update(others)
            queue += others
        if not answers:
            raise self._failed(failures, False, timeout)
        if failures:
            said = "; ".join(f"{address}: {self._reason(address, error)}" for address, error in failures.items())
            text = (
                f"{len(failures)} of {len(answers) + len(failures)} name servers did not answer, and all of them must: {said}"
            )
            raise errors.NameServerError(f"{text}; repeat the call when they run") from next(iter(failures.values()))
        return answers

    async def others(
        self,
        address: str,
        command: RemotingCommand,
        timeout: float,
        read: Callable[[RemotingCommand, str], T],
        is_enough: Callable[[T], bool] | None = None,
    ) -> Answers[T]:
        """Ask all servers but ``address`` at the same time, and return what ``read`` made of their answers.

        Each address that a name leads to counts as a server.

        It ends when all have answered or failed, after ``OTHERS_SHARE`` of ``timeout`` seconds, or with the first result for which
        ``is_enough(result)`` is true. Raises nothing: errors are in the result.
        """
        share, now = timeout * OTHERS_SHARE, machine.monotonic()
        answers: Answers[T] = Answers({}, {})
        asking: dict[asyncio.Task[T], str] = {}
        siblings = self._siblings()
        for other in [*self._addresses, *siblings]:
            if other != address and self._silent.get(other, now) <= now:
                asking[asyncio.ensure_future(self._read_from(other, command, share, read))] = other
            elif other != address and other not in siblings:
                answers.failures[other] = errors.RequestTimeoutError("not asked, it gave no answer a moment ago", address=other)
        try:
            while asking:
                done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._note(asking.pop(task), task, answers, siblings)
                if is_enough is not None and any(is_enough(result) for result in answers.results.values()):
                    break
        finally:
            for task in asking:
                task.cancel()
            if asking:
                await asyncio.wait(asking)
        return answers

    def _note(self, address: str, task: asyncio.Task[T], answers: Answers[T], siblings: Collection[str]) -> None:
        """Note the end of a request to another server in ``answers``."""
        try:
            answers.results[address] = task.result()
        except errors.RocketMQError as error:
            if address not in siblings or error.maybe_stored:  # else no server may be there, as for IPv6 of this host
                answers.failures[address] = without_frames(error)
            if not isinstance(error, errors.BrokerError | errors.ProtocolError):
                self._silent[address] = machine.monotonic() + SILENT_FOR

    async def look_again(self, timeout: float) -> bool:
        """Look up the names of the servers again; return whether one leads elsewhere, so that its next request goes there."""
        found = await asyncio.gather(*[self._pool.look_again(address, timeout) for address in self._addresses])
        return any(found)

    def are_away(self, brokers: Iterable[str]) -> bool:
        """Return whether none of these addresses can be reached at the moment."""
        return all(self._pool.is_down(address) for address in brokers)

    async def fullest(
        self,
        command: RemotingCommand,
        timeout: float,
        read: Callable[[RemotingCommand, str], T],
        size: Callable[[T], int],
        is_former: Callable[[T], bool] | None = None,
    ) -> T:
        """Return the largest of all servers' results: one that was restarted knows less than the others for some seconds.
        Raises as ``ask`` does if none answers within ``timeout`` seconds.

        Args:
            is_former: Returns whether a result may be that of servers to which the names do not lead any more.
        """
        deadline = machine.monotonic() + timeout
        found = await self._fullest(command, deadline, read, size)
        if is_former is not None and is_former(found) and await self.look_again(max(deadline - machine.monotonic(), 0.0)):
            found = await self._fullest(command, deadline, read, size)
        return found

    async def _fullest(
        self, command: RemotingCommand, deadline: float, read: Callable[[RemotingCommand, str], T], size: Callable[[T], int]
    ) -> T:
        found, address = await self.ask(command, max(deadline - machine.monotonic(), 0.0), read)
        others = await self.others(address, command, max(deadline - machine.monotonic(), 0.0), read)
        return max([found, *others.results.values()], key=size)

    async def cluster_info(self, timeout: float) -> ClusterInfo:
        """Return the clusters and brokers that the server lists which lists the most. Raises as ``fullest`` does."""
        command = RemotingCommand(code=RequestCode.GET_BROKER_CLUSTER_INFO)

        def is_former(info: ClusterInfo) -> bool:
            return self.are_away(each for data in info.broker_addr_table.values() for each in data.broker_addrs.values())

        return await self.fullest(command, timeout, _read_cluster, lambda info: len(_brokers_in(info)), is_former)

    async def listed_at(self, address: str, timeout: float) -> frozenset[tuple[str, bool]] | None:
        """Return the brokers that a server lists now, as ``listed_brokers`` does; None if it answers otherwise, as a proxy
        does. Raise the errors of a request without an answer.
        """
        command = RemotingCommand(code=RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            info = await self._read_from(address, command, timeout, _read_cluster)
        except (errors.BrokerError, errors.RemoteProtocolError):
            return None
        return _brokers_in(info)

    async def knows_brokers(self, address: str, timeout: float) -> bool:
        """Return whether a server is a witness: whether it lists a broker now.

        True for an answer that does not say that, False without an answer.
        """
        try:
            listed = await self.listed_at(address, timeout)
        except errors.RocketMQError:
            return False
        return listed is None or bool(listed)

    def prefer(self, address: str, why: str) -> None:
        """Stay with a server from now on.

        Args:
            why: The reason, for the log.
        """
        named = self._pool.lead(address)
        if named != address:
            logger.info("name server %s is asked from now on at %s: %s", named, address, why)
            self._silent.pop(named, None)
            address = named
        index = self._addresses.index(address) if address in self._addresses else 0
        if index:
            logger.info("name server %s is asked from now on: %s", address, why)
            self._addresses = self._addresses[index:] + self._addresses[:index]

    def unusable(self, answers: Mapping[str, str], failures: Mapping[str, errors.RocketMQError]) -> NoUsableAnswerError:
        """Return the error of a request that has ``failures`` and ``answers`` (texts by address) that count for nothing."""
        asked = dict.fromkeys([*self._addresses, *answers, *failures])
        said = [f"{address}: {answers.get(address) or self._reason(address, failures.get(address))}" for address in asked]
        error = NoUsableAnswerError(f"no name server gave a usable answer: {'; '.join(said)}; try again, or look at their logs")
        error.__cause__ = next(iter(failures.values()), None)
        return error

    # -- inside

    async def _read_from(
        self, address: str, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]
    ) -> T:
        """Ask one server, once more if its connection breaks: it may have been restarted since the last request."""
        deadline = machine.monotonic() + timeout
        try:
            return read(await self._one(address, command, timeout), address)
        except errors.ConnectionLostError:
            return read(await self._one(address, command, max(deadline - machine.monotonic(), 0.0)), address)

    async def _first_answer(self, timeout: float) -> None:
        """Wait for the first answer if ``patient``.

        Raises:
            NameServerError: After ``timeout`` seconds.
        """
        if not self.patient or self.answered.is_set():
            return
        try:
            async with asyncio.timeout(timeout):
                await self.answered.wait()
        except TimeoutError:
            text = f"no name server has answered since the start, nor within {timeout:.3g} s"
            last = f"the last attempt: {self.failure}" if self.failure is not None else _ADVICE
            raise errors.NameServerError(f"{text}; {last}") from None

    async def _one(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        response = await self._pool.request(address, command, timeout)
        self.answered.set()
        self.failure = None
        return response

    def _reason(self, address: str, error: errors.RocketMQError | None) -> str:
        if error is None:
            return "not asked, the time was over"
        if _is_of_broker(error):
            return "a broker answered, which is no name server"
        if isinstance(error, errors.RequestTimeoutError):
            if error.maybe_stored:
                return "no answer in its share of the time"
            last = self._pool.trouble(address)
            return "no connection in its share of the time" + (f"; the last attempt failed: {last}" if last else "")
        if isinstance(error, errors.BrokerError | errors.ProtocolError):
            return f"answered, {printable(error)}"
        return printable(error)

    def _siblings(self) -> list[str]:
        """Return the other addresses that the names of the servers lead to."""
        found = {each for address in self._addresses for each in self._pool.siblings(address)}
        return sorted(found.difference(self._addresses))

    def _in_order(self) -> list[str]:
        first, *others = self._addresses
        return [first, *sorted(others, key=self._pool.backing_off)]

    def _stay_with(self, address: str, failures: dict[str, errors.RocketMQError]) -> None:
        if address != self._addresses[0]:
            self.prefer(address, "; ".join(f"{other}: {printable(error)}" for other, error in failures.items()))

    def _failed(self, failures: dict[str, errors.RocketMQError], answered: bool, timeout: float) -> errors.NameServerError:
        said = [f"{address}: {self._reason(address, failures.get(address))}" for address in self._addresses]
        tried = "; ".join(said)
        cause = next(iter(failures.values()), None)
        error: errors.NameServerError
        brokers = [address for address in self._addresses if _is_of_broker(failures.get(address))]
        if len(brokers) == len(self._addresses):
            error = NoUsableAnswerError(_of_brokers(brokers), permanent=True)
        elif answered:
            error = NoUsableAnswerError(f"no name server gave a usable answer: {tried}; look at their logs")
        else:
            silent = any(isinstance(error, errors.RequestTimeoutError) for error in failures.values())
            late = silent or len(failures) < len(self._addresses)
            when = f" within {timeout:.3g} s" if late else ""
            error = errors.NameServerError(f"no name server answered{when}: {tried}; {_ADVICE}")
        error.__cause__ = cause
        return error


def listed_brokers(addresses: Mapping[str, Collection[int]]) -> frozenset[tuple[str, bool]]:
    """Return the brokers of an answer, so that two answers can be compared: (name, False) for each broker, and (name, True) for
    each that has a master.

    Args:
        addresses: Broker ids by broker name.
    """
    masters = {(name, True) for name, ids in addresses.items() if MASTER_ID in ids}
    return frozenset({*masters, *((name, False) for name in addresses)})


def _brokers_in(info: ClusterInfo) -> frozenset[tuple[str, bool]]:
    return listed_brokers({name: data.broker_addrs for name, data in info.broker_addr_table.items()})


def _read_cluster(response: RemotingCommand, address: str) -> ClusterInfo:
    """Read the answer to GET_BROKER_CLUSTER_INFO.

    Raises:
        BrokerError: For a code other than success.
        RemoteProtocolError: For a body that cannot be read.
    """
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response.code, response.remark, request="GET_BROKER_CLUSTER_INFO", address=address)
    return decode_cluster_info(response.body)


def _nothing() -> None:
    """Do nothing: the default of ``NameServers.on_failure``."""


def _is_of_broker(error: errors.RocketMQError | None) -> bool:
    """Return whether the error is a broker's answer to a request for a route."""
    return isinstance(error, errors.RequestCodeNotSupportedError) and error.request == RequestCode.GET_ROUTEINFO_BY_TOPIC.name


def _of_brokers(addresses: Sequence[str]) -> str:
    if len(addresses) == 1:
        return f"{addresses[0]} is the address of a broker, not of a name server; {_WANTED}"
    return f"{', '.join(addresses)} are addresses of brokers, not of name servers; {_WANTED}"


# Sends requests to the name servers while they seem unreachable, so that ``health()`` soon reports that, and soon reports
# their return.
#
# Without the watch, only the polls of the routes would show that, every ``route_poll_interval``. It begins when a connection to a
# name server is lost, or no name server has answered a request, and ends when one has answered and its connection is open.


FIRST_WATCH_PAUSE: Final = 1.0
"""Maximum seconds from the loss of a connection to the first request; the time is drawn between half of it and all of it, so
that the clients of one server do not send together."""
LONGEST_WATCH_PAUSE: Final = 8.0
"""Maximum seconds between two requests."""


class NameServerWatch:
    """The watch over the connections to name servers.

    Args:
        ask: Sends one request to the name servers, and raises NameServerError where none answers.
    """

    def __init__(self, name_servers: NameServers, ask: Callable[[], Awaitable[object]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._name_servers = name_servers
        self._ask = ask
        self._asking: asyncio.Task[None] | None = None
        self._closed = False
        name_servers.on_failure = self.begin

    def lost(self, address: str) -> None:
        """Start the requests if ``address``, to which a connection broke, belongs to a name server."""
        if address in self._name_servers.addresses:
            self.begin()

    def begin(self) -> None:
        """Start the requests unless they run.

        Do nothing before the first answer of any name server: ``ClusterProbe`` then sends requests.
        """
        if self._asking is None and self._name_servers.answered.is_set() and not self._closed:
            self._asking = self._loop.create_task(self._run(), name="rmq_async name servers", context=Context())

    def close(self) -> list[asyncio.Task[object]]:
        """Cancel the requests, without awaiting; return the task that has not ended yet, if there is one."""
        self._closed = True
        if self._asking is None:
            return []
        self._asking.cancel()
        return [self._asking]

    async def _run(self) -> None:
        pauses = Backoff(FIRST_WATCH_PAUSE, LONGEST_WATCH_PAUSE)
        try:
            await asyncio.sleep(FIRST_WATCH_PAUSE * machine.random.uniform(0.5, 1.0))
            while not self._name_servers.is_well:
                await self._name_servers.look_again(FIRST_WATCH_PAUSE)  # a connection to where they led may be open, and silent
                try:
                    await self._ask()
                except errors.NameServerError as error:
                    logger.debug("still no name server: %s", printable(error, 1000))
                if not self._name_servers.is_well:  # also where one has answered and was lost again
                    await asyncio.sleep(pauses.next())
        finally:
            self._asking = None
