"""Requests to the name servers. Any name server may answer a request.

All name servers have nearly the same data. The list is shuffled once, and the client keeps using the server that responded last. If
that server fails, the same call tries the other servers, beginning with those to which no connection attempt failed a moment ago,
and then all other addresses to which the host names resolve. From then on, the client uses the first server that responds. A server
that does not respond may use only its share of the remaining time: with two servers, the second one is tried after half of that
time. A server whose connection broke during a request is tried once more at the end, because it may have been restarted since.

A response that a topic or a broker is unknown proves nothing if only one server gives it: the server may have been restarted, and
brokers register again only within 30 s. Therefore ``others`` asks the other servers concurrently, and ``knows_brokers`` returns
whether a server's response can be trusted: a server that lists no broker knows no topic either.

A broker refuses route requests (3, request type not supported). Nothing else distinguishes its address from the address of a name
server. If every address belongs to a broker, the error is permanent, because waiting cannot help.
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
_WANTED: Final = "pass the addresses of name servers (default port 9876), which know the addresses of the brokers"


OTHERS_SHARE: Final = 0.5
"""The share of the remaining time in which the other servers may respond; the rest is for the steps that follow."""

COMPARED_WITHIN: Final = 1.0
"""Seconds to compare the responses of the other servers with the response of the first one, at the start of a client and for the
first route of a topic. The other servers get OTHERS_SHARE of this time."""

SILENT_FOR: Final = 10.0
"""Seconds for which ``others`` skips a server that did not respond. Otherwise each of thousands of topics would wait for it."""


class Answers(NamedTuple, Generic[T]):
    """The results and errors of requests to several servers, by the server's address.

    Attributes:
        failures: The errors of servers that gave no usable response.
    """

    results: dict[str, T]
    failures: dict[str, errors.RocketMQError]


class NoUsableAnswerError(errors.NameServerError):
    """The error of a request to which name servers responded, but none with a usable response. The network is not the cause."""


class NameServers:
    """The name servers of a cluster, and the requests to them.

    Args:
        addresses: The "host:port" of each server.

    Raises:
        NameServerError: If ``addresses`` is empty.
    """

    def __init__(self, pool: ConnectionPool, addresses: Sequence[str]) -> None:
        if not addresses:
            raise errors.NameServerError("no name server is configured; pass namesrv=... or set NAMESRV_ADDR")
        self._pool = pool
        self._addresses = list(addresses)
        machine.random.shuffle(self._addresses)
        self._silent: dict[str, float] = {}
        """The time (monotonic) until which ``others`` skips a server that did not respond, by address."""
        self.patient = False
        """Whether requests wait, within their timeout, for the first response of a name server instead of failing."""
        self.answered = asyncio.Event()
        """Set by the first response and never cleared."""
        self.failure: errors.NameServerError | None = None
        """The error of the last request if it got no response. None after a response, and before the first request."""
        self.on_failure: Callable[[], None] = _nothing
        """Called when a request got no response."""

    def __repr__(self) -> str:
        return f"<NameServers {', '.join(self._addresses)}>"

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses; the address of the server that is asked first comes first."""
        return tuple(self._addresses)

    @property
    def is_well(self) -> bool:
        """Whether the last request got a response and a connection to a name server is open."""
        return self.failure is None and any(self._pool.get(address) is not None for address in self._addresses)

    async def request(self, command: RemotingCommand, timeout: float) -> tuple[RemotingCommand, str]:
        """Return the first response, with any code, and the server's address.

        Raises:
            NameServerError: If no server responds within ``timeout`` seconds.
        """
        return await self.ask(command, timeout, lambda response, _: response)

    async def ask(self, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]) -> tuple[T, str]:
        """Return ``read(response, address)`` for the first usable response, and the address of the server that sent it.

        A response for which ``read`` raises a RocketMQError is not usable; the next server is asked.

        Raises:
            NoUsableAnswerError: If a server responded, but none gave a usable response before ``timeout`` seconds passed or all
                servers failed. The error is permanent if all addresses belong to brokers.
            NameServerError: If no server responded.
        """
        deadline = machine.monotonic() + timeout
        await self._first_answer(timeout)
        return await self._ask(command, deadline - machine.monotonic(), read)

    async def probe(self, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]) -> tuple[T, str]:
        """Send a request as ``ask`` does, but never wait for the first response of a name server (``patient``)."""
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
            self.failure = self._failed(failures, answered, timeout)  # a second error: a raised error keeps its callers' frames
            self.on_failure()
        raise self._failed(failures, answered, timeout)

    async def each(self, command: RemotingCommand, timeout: float) -> dict[str, RemotingCommand]:
        """Return the responses of all name servers, by address.

        Each address to which a host name resolves counts as a name server, if a connection to it can be made.

        Raises:
            NameServerError: If a server does not respond within its share of ``timeout`` seconds.
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
                f"{len(failures)} of {len(answers) + len(failures)} name servers did not respond, but all must respond: {said}"
            )
            raise errors.NameServerError(f"{text}; repeat the call when all are running") from next(iter(failures.values()))
        return answers

    async def others(
        self,
        address: str,
        command: RemotingCommand,
        timeout: float,
        read: Callable[[RemotingCommand, str], T],
        is_enough: Callable[[T], bool] | None = None,
    ) -> Answers[T]:
        """Ask all servers except ``address`` concurrently, and return the results of ``read`` for their responses.

        Each address to which a host name resolves counts as a server.

        Return when all servers have responded or failed, after ``OTHERS_SHARE`` of ``timeout`` seconds, or after the first result
        for which ``is_enough(result)`` is true. No error of a server is raised; the errors are in the returned Answers.
        """
        share, now = timeout * OTHERS_SHARE, machine.monotonic()
        answers: Answers[T] = Answers({}, {})
        asking: dict[asyncio.Task[T], str] = {}
        siblings = self._siblings()
        for other in [*self._addresses, *siblings]:
            if other != address and self._silent.get(other, now) <= now:
                asking[asyncio.ensure_future(self._read_from(other, command, share, read))] = other
            elif other != address and other not in siblings:
                answers.failures[other] = errors.RequestTimeoutError("skipped, it did not respond a moment ago", address=other)
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
        """Record the result or the error of a request to another server in ``answers``."""
        try:
            answers.results[address] = task.result()
        except errors.RocketMQError as error:
            if address not in siblings or error.maybe_stored:  # a sibling may have no server, such as ::1 of this host
                answers.failures[address] = without_frames(error)
            if not isinstance(error, errors.BrokerError | errors.ProtocolError):
                self._silent[address] = machine.monotonic() + SILENT_FOR

    async def look_again(self, timeout: float) -> bool:
        """Look up the host names of the servers again.

        Return whether at least one name now resolves to other addresses; the next request to that server uses one of them.
        """
        found = await asyncio.gather(*[self._pool.look_again(address, timeout) for address in self._addresses])
        return any(found)

    def are_away(self, brokers: Iterable[str]) -> bool:
        """Return whether none of the addresses can currently be reached."""
        return all(self._pool.is_down(address) for address in brokers)

    async def fullest(
        self,
        command: RemotingCommand,
        timeout: float,
        read: Callable[[RemotingCommand, str], T],
        size: Callable[[T], int],
        is_former: Callable[[T], bool] | None = None,
    ) -> T:
        """Return the largest of all servers' results, because the routes of a restarted server are incomplete for some seconds.

        Args:
            size: Returns the size of a result.
            is_former: Returns whether a result may come from servers at addresses to which the host names no longer resolve. If so,
                the names are looked up and the servers asked again.

        Raises:
            NameServerError: If no server gives a usable response within ``timeout`` seconds.
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
        """Return the clusters and brokers from the server that lists the most brokers.

        Raises:
            NameServerError: If no server gives a usable response within ``timeout`` seconds.
        """
        command = RemotingCommand(code=RequestCode.GET_BROKER_CLUSTER_INFO)

        def is_former(info: ClusterInfo) -> bool:
            return self.are_away(each for data in info.broker_addr_table.values() for each in data.broker_addrs.values())

        return await self.fullest(command, timeout, _read_cluster, lambda info: len(_brokers_in(info)), is_former)

    async def listed_at(self, address: str, timeout: float) -> frozenset[tuple[str, bool]] | None:
        """Return the brokers that a server currently lists, as ``listed_brokers`` returns them.

        Return None if the response contains no list, as from a proxy. If there is no response, raise the error of the request.
        """
        command = RemotingCommand(code=RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            info = await self._read_from(address, command, timeout, _read_cluster)
        except (errors.BrokerError, errors.RemoteProtocolError):
            return None
        return _brokers_in(info)

    async def knows_brokers(self, address: str, timeout: float) -> bool:
        """Return whether a server currently lists a broker, so that its response "no such topic" can be trusted.

        Return True for a response that contains no list of brokers. Return False if there is no response.
        """
        try:
            listed = await self.listed_at(address, timeout)
        except errors.RocketMQError:
            return False
        return listed is None or bool(listed)

    def prefer(self, address: str, why: str) -> None:
        """Ask the server at ``address`` first from now on.

        Args:
            why: The reason, for the log.
        """
        named = self._pool.lead(address)
        if named != address:
            logger.info("requests to name server %s now go to its address %s: %s", named, address, why)
            self._silent.pop(named, None)
            address = named
        index = self._addresses.index(address) if address in self._addresses else 0
        if index:
            logger.info("requests now go to name server %s: %s", address, why)
            self._addresses = self._addresses[index:] + self._addresses[:index]

    def unusable(self, answers: Mapping[str, str], failures: Mapping[str, errors.RocketMQError]) -> NoUsableAnswerError:
        """Return the error of a request without a usable response.

        Args:
            answers: For each address that responded, why the response is not usable.
            failures: The errors of the other requests, by address.
        """
        asked = dict.fromkeys([*self._addresses, *answers, *failures])
        said = [f"{address}: {answers.get(address) or self._reason(address, failures.get(address))}" for address in asked]
        error = NoUsableAnswerError(f"no name server gave a usable response: {'; '.join(said)}; try again, or check their logs")
        error.__cause__ = next(iter(failures.values()), None)
        return error

    # -- inside

    async def _read_from(
        self, address: str, command: RemotingCommand, timeout: float, read: Callable[[RemotingCommand, str], T]
    ) -> T:
        """Send a request to one server. Repeat it once if the connection breaks, because the server may have been restarted."""
        deadline = machine.monotonic() + timeout
        try:
            return read(await self._one(address, command, timeout), address)
        except errors.ConnectionLostError:
            return read(await self._one(address, command, max(deadline - machine.monotonic(), 0.0)), address)

    async def _first_answer(self, timeout: float) -> None:
        """Wait for the first response of any name server if ``patient`` is True.

        Raises:
            NameServerError: If there is no response within ``timeout`` seconds.
        """
        if not self.patient or self.answered.is_set():
            return
        try:
            async with asyncio.timeout(timeout):
                await self.answered.wait()
        except TimeoutError:
            text = f"no name server has answered since the start, including the last {timeout:.3g} s"
            last = f"the last attempt: {self.failure}" if self.failure is not None else _ADVICE
            raise errors.NameServerError(f"{text}; {last}") from None

    async def _one(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        response = await self._pool.request(address, command, timeout)
        self.answered.set()
        self.failure = None
        return response

    def _reason(self, address: str, error: errors.RocketMQError | None) -> str:
        if error is None:
            return "not asked, because the timeout had passed"
        if _is_of_broker(error):
            return "this is a broker, not a name server"
        if isinstance(error, errors.RequestTimeoutError):
            if error.maybe_stored:
                return "no response in its share of the time"
            last = self._pool.trouble(address)
            return "no connection in its share of the time" + (f"; the last attempt failed: {last}" if last else "")
        if isinstance(error, errors.BrokerError | errors.ProtocolError):
            return f"it responded: {printable(error)}"
        return printable(error)

    def _siblings(self) -> list[str]:
        """Return the addresses to which the host names of the servers resolve, except the connected ones."""
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
            error = NoUsableAnswerError(f"no name server gave a usable response: {tried}; check their logs")
        else:
            silent = any(isinstance(error, errors.RequestTimeoutError) for error in failures.values())
            late = silent or len(failures) < len(self._addresses)
            when = f" within {timeout:.3g} s" if late else ""
            error = errors.NameServerError(f"no name server answered{when}: {tried}; {_ADVICE}")
        error.__cause__ = cause
        return error


def listed_brokers(addresses: Mapping[str, Collection[int]]) -> frozenset[tuple[str, bool]]:
    """Return the brokers in a response as a set, so that two responses can be compared.

    The set contains (name, False) for each broker, and (name, True) for each broker that has a master.

    Args:
        addresses: Broker ids by broker name.
    """
    masters = {(name, True) for name, ids in addresses.items() if MASTER_ID in ids}
    return frozenset({*masters, *((name, False) for name in addresses)})


def _brokers_in(info: ClusterInfo) -> frozenset[tuple[str, bool]]:
    return listed_brokers({name: data.broker_addrs for name, data in info.broker_addr_table.items()})


def _read_cluster(response: RemotingCommand, address: str) -> ClusterInfo:
    """Read the response to GET_BROKER_CLUSTER_INFO.

    Raises:
        BrokerError: If the code is not success.
        RemoteProtocolError: If the body cannot be read.
    """
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response.code, response.remark, request="GET_BROKER_CLUSTER_INFO", address=address)
    return decode_cluster_info(response.body)


def _nothing() -> None:
    """Do nothing. This is the default of ``NameServers.on_failure``."""


def _is_of_broker(error: errors.RocketMQError | None) -> bool:
    """Return whether the error is a broker's response to a request for a route."""
    return isinstance(error, errors.RequestCodeNotSupportedError) and error.request == RequestCode.GET_ROUTEINFO_BY_TOPIC.name


def _of_brokers(addresses: Sequence[str]) -> str:
    if len(addresses) == 1:
        return f"{addresses[0]} is the address of a broker, not of a name server; {_WANTED}"
    return f"{', '.join(addresses)} are addresses of brokers, not of name servers; {_WANTED}"


# Sends requests to the name servers while they cannot be reached, so that ``health()`` soon reports that they do not respond, and
# soon reports that they respond again.
#
# Without the watch, only the regular route requests would show this, every ``route_poll_interval``. The watch begins when a
# connection to a name server is lost or a request gets no response. It ends when a name server has responded and its connection is
# open.


FIRST_WATCH_PAUSE: Final = 1.0
"""Maximum seconds from the loss of a connection to the first request. The actual pause is random and at least half as long, so that
the clients of one server do not all send at the same time."""
LONGEST_WATCH_PAUSE: Final = 8.0
"""Maximum seconds between two requests."""


class NameServerWatch:
    """Watches the connections to the name servers.

    Args:
        ask: Sends one request to the name servers, and raises NameServerError if none responds.
    """

    def __init__(self, name_servers: NameServers, ask: Callable[[], Awaitable[object]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._name_servers = name_servers
        self._ask = ask
        self._asking: asyncio.Task[None] | None = None
        self._closed = False
        name_servers.on_failure = self.begin

    def lost(self, address: str) -> None:
        """Start sending requests if ``address`` belongs to a name server. Call this when a connection to ``address`` broke."""
        if address in self._name_servers.addresses:
            self.begin()

    def begin(self) -> None:
        """Start sending requests, unless they are already being sent.

        Do nothing before the first response of any name server, because ``ClusterProbe`` sends requests until then.
        """
        if self._asking is None and self._name_servers.answered.is_set() and not self._closed:
            self._asking = self._loop.create_task(self._run(), name="rmq_async name servers", context=Context())

    def close(self) -> list[asyncio.Task[object]]:
        """Stop sending requests, without awaiting. Return the task that has not ended yet, if there is one."""
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
                await self._name_servers.look_again(FIRST_WATCH_PAUSE)  # the old address may accept connections but be silent
                try:
                    await self._ask()
                except errors.NameServerError as error:
                    logger.debug("no name server responds yet: %s", printable(error, 1000))
                if not self._name_servers.is_well:  # also if a server responded and was lost again
                    await asyncio.sleep(pauses.next())
        finally:
            self._asking = None
