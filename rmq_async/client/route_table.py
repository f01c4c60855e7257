"""The routes of topics: a cache in front of the name servers.

Sends read the cache with ``cached``, a dict lookup. If the route is missing, one request serves all its callers, plus a request for
TBW102 if the topic is unknown and may be created by sending. The route of each topic in use is requested again every
``route_poll_interval``, and sooner after an error (``refresh_soon``). A response that is empty, unreadable or says "no such topic"
never replaces a good route, because the brokers' own responses are more reliable. If the response of one name server lacks
something that is known, other name servers must confirm it (see ``_confirmed`` and ``_fullest``). Equal responses are recognized by
their digests, so requests decode nothing while the cluster is unchanged; ``version`` grows only when a route is new or has changed.
A topic that was not used for some time (``use``) is dropped, and requested again at its next use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import MASTER_ID, ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.headers import GetRouteInfoRequestHeader, request_of
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import decode_route, route_fingerprint

from .. import machine
from .._asyncio import Flight, SingleFlight, WaitFor
from .._text import printable, without_faq
from ..broker_answers import broker_error
from ..errors import NameServerError, RocketMQError, TopicNotFoundError
from .name_servers import COMPARED_WITHIN, Answers, NameServers, NoUsableAnswerError, listed_brokers
from .topic_route import BrokerLists, TopicRoute, malformed_addresses, queue_counts, topic_route

# Records which topics are used, so that a route table can drop unused topics.
#
# Sends do not call ``mark``, because this would take time for each message. Instead, each producer reports, once per poll (the
# regular refresh of all routes), the topics to which it has sent since the previous poll. Other users call ``mark`` at each
# request, or ``hold`` while they need the topic.

UNUSED_POLLS: Final = 10
"""Number of polls without a use of a topic after which the topic is dropped."""

UNKNOWN_POLLS: Final = 3
"""Number of polls without a use of a topic, each with the response "no such topic", after which the topic is dropped. With the
default interval, these polls take 90 s; a broker registers its topics at a restarted name server within 60 s."""


class TopicUse:
    """The number of polls (regular refreshes of all routes) since the last use of each topic. Without polls, no topic is
    dropped.
    """

    def __init__(self) -> None:
        self.reports: list[Callable[[], Iterable[str]]] = []
        """Plain functions. Each returns the topics that were used since its previous call."""
        self._held: dict[str, int] = {}
        self._marked: set[str] = set()
        self._unused: dict[str, int] = {}
        self._unknown: dict[str, int] = {}
        self.mark: Callable[[str], None] = self._marked.add
        """Record one use of a topic."""

    def __len__(self) -> int:
        return len(self._unused)

    def hold(self, topic: str) -> None:
        """Keep the topic until ``release`` has been called as often as ``hold``."""
        self._held[topic] = self._held.get(topic, 0) + 1

    def release(self, topic: str) -> None:
        """End one ``hold``. The topic counts as used at this moment."""
        self._marked.add(topic)
        if self._held[topic] > 1:
            self._held[topic] -= 1
        else:
            del self._held[topic]

    def count_poll(self, answers: Mapping[str, bool]) -> list[str]:
        """Count one poll and return the topics that should be dropped. The topic that was unused for the longest time comes first.

        Args:
            answers: For each topic with a response, whether the name servers know it.
        """
        used = self._held.keys() | self._marked
        self._marked.clear()
        for report in list(self.reports):
            used.update(report())
        for topic in used:
            self._unused.pop(topic, None)
            self._unknown.pop(topic, None)
        due = []
        for topic in answers:  # not a set, whose order depends on the process
            if topic in used:
                continue
            unused = self._unused[topic] = self._unused.get(topic, 0) + 1
            unknown = self._unknown[topic] = 0 if answers[topic] else self._unknown.get(topic, 0) + 1
            if unused >= UNUSED_POLLS or unknown >= UNKNOWN_POLLS:
                due.append(topic)
        return sorted(due, key=lambda topic: -self._unused[topic])

    def is_unknown(self, topic: str) -> bool:
        """Return whether the topic was unused at the last poll, and the name servers did not know it."""
        return self._unknown.get(topic, 0) > 0

    def forget(self, topic: str) -> None:
        self._unused.pop(topic, None)
        self._unknown.pop(topic, None)


def topics_to_keep(
    due: Iterable[str], kept: Iterable[str], brokers: Collection[str], brokers_of: Callable[[str], Collection[str]]
) -> set[str]:
    """Return the topics in ``due`` that must be kept, so that each of ``brokers`` is in the route of at least one kept topic.

    The last topics in ``due`` are preferred. A broker that is in no route gets no heartbeats, although it may have a half message
    of this client whose transaction it must check.

    Args:
        due: The topics that would otherwise be dropped.
        kept: Topics that stay in any case.
        brokers_of: Returns the names of the brokers in the route of a topic.
    """
    unnamed = set(brokers)
    for topic in kept:
        if not unnamed:
            break
        unnamed.difference_update(brokers_of(topic))
    stay = set()
    for topic in reversed(list(due)):
        if not unnamed:
            break
        if not unnamed.isdisjoint(brokers_of(topic)):
            stay.add(topic)
            unnamed.difference_update(brokers_of(topic))
    return stay


logger = logging.getLogger(__name__)

REFRESH_SPACING: Final = 1.0
"""Minimum seconds between two refreshes of one topic after errors; there may be thousands of errors in one second."""

SWEEP_AFTER: Final = 0.5
"""Seconds from the loss of a connection to the refresh of all routes. A name server drops a dead broker within 0.3 s."""

_CORRECT: Final = "an address must be host:port; correct brokerIP1 and listenPort of the broker"

_SHARE: Final = 0.98
"""The share of ``request_timeout`` for a route request. A caller with this timeout then gets the failures of the name servers as
its error."""


class _Answer(NamedTuple):
    """A name server's response to a route request.

    Attributes:
        route: The route. None for "no such topic", and for a route that cannot be used.
        fault: Why the route cannot be used, with advice.
        witnessed: Whether the response comes from a name server that knows a broker.
    """

    name_server: str
    digest: bytes
    route: TopicRoute | None
    remark: str
    fault: str = ""
    witnessed: bool = True


class RouteTable:
    """The routes of the topics that the client uses.

    Args:
        request_timeout: Seconds for one request.
        poll_interval: Seconds between two regular refreshes of all routes.
        display_name: Returns a topic's name for error messages.
        cluster_found: If given, lookups wait for this event.
    """

    def __init__(
        self,
        name_servers: NameServers,
        *,
        request_timeout: float,
        poll_interval: float,
        display_name: Callable[[str], str] = str,
        cluster_found: asyncio.Event | None = None,
    ) -> None:
        self._name_servers = name_servers
        self._display_name = display_name
        self._cluster_found = cluster_found
        self._request_timeout = request_timeout
        self._poll_interval = poll_interval
        self._routes: dict[str, TopicRoute] = {}
        self._digests: dict[str, bytes] = {}
        """The digest of the response body from which a topic's route was decoded, by topic."""
        self._brokers: dict[str, Mapping[int, str]] = {}
        self._lists = BrokerLists()
        self._asking: SingleFlight[_Answer] = SingleFlight("route of")
        self._finding: SingleFlight[TopicRoute] = SingleFlight("finding")
        self._refreshed: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._doubted: set[str] = set()
        self._sweeping: SingleFlight[dict[str, bool]] = SingleFlight("refresh of")
        self._sweep: asyncio.TimerHandle | None = None
        self._version = 0
        self._unreachable = False
        self._closed = False
        self.on_change: list[Callable[[TopicRoute], None]] = []
        """Plain functions that are called with each route that is new or has changed."""
        self.use = TopicUse()
        """Records which topics are used."""
        self.cached: Callable[[str], TopicRoute | None] = self._routes.get
        """Return the route of a topic without I/O. Return None if it is unknown."""

    def __repr__(self) -> str:
        return f"<RouteTable {len(self._routes)} topics, {len(self._brokers)} brokers, {len(self._asking)} lookups>"

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in use."""
        return tuple(self._routes)

    @property
    def lookups(self) -> int:
        """Number of running lookups."""
        return len(self._asking) + len(self._finding)

    async def get(
        self,
        topic: str,
        timeout: float,
        *,
        create_key: str | None = None,
        default_queues: int = 4,
        wait: WaitFor[TopicRoute] = Flight.wait,
    ) -> TopicRoute:
        """Return the route of ``topic``, from the cache or from a lookup that concurrent callers share.

        Args:
            timeout: Maximum seconds for the call.
            create_key: A topic (TBW102) whose route is used if ``topic`` does not exist, with at most ``default_queues`` queues per
                broker. The first send then creates ``topic``.
            wait: The function that waits for the lookup.

        Raises:
            TopicNotFoundError: If the name servers know neither ``topic`` nor ``create_key``.
            NameServerError: If no name server gives a usable response in time.
            ClientStateError: If the table is closed.
        """
        self.use.mark(topic)
        route = self._routes.get(topic)
        if route is not None and (create_key is not None or not route.provisional):
            return route
        deadline = machine.monotonic() + timeout
        key = (topic, create_key, default_queues if create_key is not None else 0)
        try:
            return await wait(self._finding.start(key, lambda: self._find(topic, create_key, default_queues)), deadline)
        except TimeoutError:
            raise self._late(topic, timeout) from None

    async def refresh(self, topic: str, timeout: float | None = None, *, provisional: bool = True) -> TopicRoute:
        """Request the route now. Return the route that is then in use, which is the old one if the response is not usable.

        Args:
            timeout: Maximum seconds. The default is ``request_timeout``.
            provisional: Whether to return an old route even if the topic does not exist yet and the first send will create it.

        Raises:
            RocketMQError: The errors of ``get``, if there is no old route.
        """
        self.use.mark(topic)
        budget = self._request_timeout if timeout is None else timeout
        try:
            answer = await self._ask(topic, machine.monotonic() + budget)
        except TimeoutError:
            error: RocketMQError = self._late(topic, budget)
        except NameServerError as failure:
            error = failure
        else:
            if answer.route is not None:
                return answer.route
            error = self._not_found(topic, answer)
        old = self._routes.get(topic)
        if old is None or (old.provisional and not provisional):
            raise error
        return old

    async def fetch(self, topic: str, timeout: float) -> TopicRoute:
        """Request the route now from all name servers and return the most complete one. This does not count as a use of the topic.

        Raises:
            RocketMQError: The errors of ``get``.
        """
        try:
            answer = await self._asking.join((topic, "all"), lambda: self._request_all(topic), machine.monotonic() + timeout)
        except TimeoutError:
            raise self._late(topic, timeout) from None
        if answer.route is None:
            raise self._not_found(topic, answer)
        return answer.route

    def refresh_soon(self, topic: str) -> None:
        """Start a refresh in the background after an error, at most one per second for each topic.

        Do nothing after ``close``, because calls that ``close`` ends also report errors.
        """
        if self._closed:
            return
        now = machine.monotonic()
        due = self._refreshed.get(topic, 0.0) + REFRESH_SPACING
        if topic in self._timers or topic in self._asking:
            return
        if now >= due:
            self._refresh_now(topic)
        else:
            self._timers[topic] = asyncio.get_running_loop().call_later(due - now, self._refresh_now, topic)

    async def renew(self, topic: str, deadline: float) -> None:
        """Call ``refresh_soon``. If the refresh starts now, wait for it until ``deadline`` (monotonic)."""
        self.refresh_soon(topic)
        if topic in self._asking:
            with suppress(RocketMQError, TimeoutError):
                await self._ask(topic, deadline)

    async def refresh_all(self) -> dict[str, bool]:
        """Request the routes of all topics in use, one after the other. Stop if no name server responds.

        Returns:
            For each topic with a response, whether the name servers know it.
        """
        answers: dict[str, bool] = {}
        for topic in list(self._routes):
            if topic not in self._routes:  # a concurrent poll has dropped the topic
                continue
            try:
                answer = await self._ask(topic, self._patience())
                if answer.witnessed:
                    answers[topic] = answer.route is not None
            except (NoUsableAnswerError, TimeoutError) as error:
                logger.warning("cannot refresh the route of topic %s; it stays in use: %s", topic, printable(error, 1000))
            except NameServerError as error:
                log = logger.debug if self._unreachable else logger.warning
                log("cannot refresh the routes; they stay in use: %s", printable(error, 1000))
                self._unreachable = True
                return answers
        if self._unreachable:
            self._unreachable = False
            logger.info("the name servers respond again; the routes were refreshed")
        self._forget_brokers()
        return answers

    async def poll(self) -> None:
        """Refresh all routes and drop unused ones every ``poll_interval`` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._poll_interval)
            try:
                self._forget_unused(await self.refresh_all())
            except Exception:
                logger.exception("refreshing the routes failed; the next attempt is in %s s", self._poll_interval)

    def address_of(self, broker_name: str) -> str | None:
        """Return the address of a broker's master in the newest route of any topic. Return None if it is unknown."""
        return self._brokers.get(broker_name, {}).get(MASTER_ID)

    def addresses_of(self, broker_name: str) -> Mapping[int, str]:
        """Return the addresses of a broker by broker id, from the newest route of any topic. Return an empty mapping for an unknown
        broker.
        """
        return self._brokers.get(broker_name, {})

    def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker that holds a queue. For a static topic, the route in use determines it."""
        self.use.mark(queue.topic)
        route = self._routes.get(queue.topic)
        return route.broker_of(queue) if route is not None else queue.broker_name

    def master_addresses(self) -> Iterable[str]:
        """Return the addresses of the masters of all topics in use. Each address occurs once, in the order of first use."""
        return dict.fromkeys(addresses[MASTER_ID] for addresses in self._brokers.values() if MASTER_ID in addresses)

    def masters(self) -> dict[str, str]:
        """Return the address of each master by broker name, for all topics in use. May be called from any thread."""
        brokers = self._brokers.copy()
        return {name: addresses[MASTER_ID] for name, addresses in brokers.items() if MASTER_ID in addresses}

    def broker_lost(self, address: str) -> None:
        """Schedule a refresh of all routes after the loss of a connection to a broker in use."""
        if self._sweep is None and any(address in addresses.values() for addresses in self._brokers.values()):
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_AFTER, self._sweep_now)

    def close(self) -> list[asyncio.Task[object]]:
        """Cancel all lookups and return their tasks, which need one more iteration of the loop to end."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._sweep is not None:
            self._sweep.cancel()
        self.on_change.clear()
        return [*self._sweeping.close(), *self._finding.close(), *self._asking.close()]

    # -- lookups

    async def _find(self, topic: str, create_key: str | None, default_queues: int) -> TopicRoute:
        """Find the route of a topic that has none yet. This runs in a task of its own, with ``request_timeout`` for each
        request.
        """
        await self._cluster()
        answer = await self._ask(topic, self._patience())
        if answer.route is not None:
            return answer.route
        if create_key is None or answer.fault:
            raise self._not_found(topic, answer)
        model = await self._ask_aside(create_key, self._patience())
        if model.route is None:
            raise self._not_found(topic, answer._replace(fault=model.fault), create_key)
        known = self._routes.get(topic)  # another lookup may have found it meanwhile
        return known if known is not None else self._create_by_sending(topic, model, default_queues)

    async def _ask(self, topic: str, deadline: float) -> _Answer:
        return await self._asking.join(topic, lambda: self._request(topic), deadline)

    async def _ask_aside(self, topic: str, deadline: float) -> _Answer:
        """Request a route without adding it to the table."""
        return await self._asking.join((topic,), lambda: self._request(topic, enter=False), deadline)

    async def _request(self, topic: str, *, enter: bool = True) -> _Answer:
        """Request a route. If ``enter`` is true, add a usable route to the table."""
        answer = await self._answer(topic)
        return self._enter(topic, answer) if enter else answer

    async def _request_all(self, topic: str) -> _Answer:
        """Request a route from all name servers. If the topic is in use, add a usable route to the table."""
        answer = await self._answer(topic, from_all=True)
        return self._enter(topic, answer) if topic in self._routes else answer

    async def _answer(self, topic: str, *, from_all: bool = False) -> _Answer:
        """Return the response of the name server in use, or a better response of another name server.

        If there is no route, or all its brokers are unreachable, look up the host names of the name servers again. If the names now
        resolve to other addresses, repeat the request there.

        Args:
            from_all: Whether to ask the other name servers in any case.
        """
        await self._cluster()
        deadline = machine.monotonic() + self._request_timeout * _SHARE
        answer = await self._answer_here(topic, deadline, from_all)
        brokers = () if answer.route is None else answer.route.addresses.values()
        if self._name_servers.are_away(
            each for ids in brokers for each in ids.values()
        ) and await self._name_servers.look_again(_left(deadline)):
            answer = await self._answer_here(topic, deadline, from_all)
        return answer

    async def _answer_here(self, topic: str, deadline: float, from_all: bool) -> _Answer:
        """Return the response of the name servers at the addresses to which their host names currently resolve."""
        names = self._name_servers
        answer, _ = await names.ask(_question(topic), _left(deadline), partial(self._read, topic))
        if answer.route is None:
            return await self._confirmed(topic, answer, deadline)
        known = self._routes.get(topic)
        if from_all:
            return await self._fullest(topic, answer, deadline)
        if known is None or known.provisional:  # queues that are missing now stay missing until the next poll
            return await self._fullest(topic, answer, min(deadline, machine.monotonic() + COMPARED_WITHIN))
        if answer.route is known or not _lacks(answer.route, known):
            return answer
        return await self._fullest(topic, answer, deadline, known)

    async def _others(
        self, topic: str, answer: _Answer, deadline: float, is_enough: Callable[[_Answer], bool] | None
    ) -> Answers[_Answer]:
        return await self._name_servers.others(
            answer.name_server, _question(topic), _left(deadline), partial(self._read, topic), is_enough
        )

    async def _confirmed(self, topic: str, answer: _Answer, deadline: float) -> _Answer:
        """Return another name server's route of a topic that is unknown to the first one, or a confirmed "no such topic" response.

        Only a name server that knows a broker can confirm this, because one that knows none may just have been restarted.

        Raises:
            NoUsableAnswerError: If no name server that responds knows a broker, and other name servers do not respond.
        """
        names = self._name_servers
        heard = await self._others(topic, answer, deadline, _has_route)
        if found := [each for each in heard.results.values() if each.route is not None]:
            best = max(found, key=lambda each: _weight(each.route))
            names.prefer(best.name_server, f"{answer.name_server} has no route of topic {printable(topic)}")
            return best
        said = [answer, *heard.results.values()]
        for each in said:  # mostly the first one knows brokers
            if await names.knows_brokers(each.name_server, _left(deadline)):
                names.prefer(each.name_server, f"{answer.name_server} knows no broker and may have been restarted")
                return each
        if heard.failures:
            raise names.unusable({each.name_server: "it knows no broker yet" for each in said}, heard.failures)
        return answer._replace(witnessed=False)

    async def _fullest(self, topic: str, answer: _Answer, deadline: float, known: TopicRoute | None = None) -> _Answer:
        """Return the most complete route: ``answer``, or another name server's route if the name server of ``answer`` lacks
        brokers.

        The other route is returned if it names a broker or a master that ``answer`` lacks, and the name server of ``answer`` does
        not list that broker at all, as after a restart. If a name server lists a broker, it knows all topics of the broker.

        Args:
            known: The route in use. The first route that lacks nothing of it is sufficient, and is preferred among equally complete
                routes.
        """
        names = self._name_servers
        is_enough = None if known is None else partial(_has_route, known=known)
        heard = await self._others(topic, answer, deadline, is_enough)
        best = max([answer, *heard.results.values()], key=lambda each: (_weight(each.route), _has_route(each, known)))
        if best is answer:
            return answer
        if absent := _brokers(best.route) - _brokers(answer.route):
            with suppress(RocketMQError):
                listed = await names.listed_at(answer.name_server, _left(deadline))
                if listed is None or absent <= listed:
                    return answer
        names.prefer(best.name_server, f"{answer.name_server} has an incomplete route of topic {printable(topic)}")
        return best

    async def _cluster(self) -> None:
        """Wait until the cluster is found, if it was missing at the start. There is no timeout here, because callers have their
        own.
        """
        if self._cluster_found is not None and not self._cluster_found.is_set():
            await self._cluster_found.wait()

    def _patience(self) -> float:
        """Return a deadline for waiting for a route request. It is later than the deadline of the request itself."""
        return machine.monotonic() + self._request_timeout + 1.0

    def _read(self, topic: str, response: RemotingCommand, address: str) -> _Answer:
        """Read a response without changing the table.

        Raises:
            BrokerError, RemoteProtocolError: If the response contains no information about the topic.
        """
        remark = response.remark or ""
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return _Answer(address, b"", None, remark)
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response.code, response.remark, request="GET_ROUTEINFO_BY_TOPIC", address=address)
        old, digest = self._routes.get(topic), blake2b(response.body, digest_size=16).digest()
        if old is not None and self._digests.get(topic) == digest:
            return _Answer(address, digest, old, remark)
        if not response.body:
            raise RemoteProtocolError(f"the response with the route of topic {printable(topic)} has no body", address=address)
        try:
            route = topic_route(topic, decode_route(response.body), self._lists)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"its route cannot be read: {printable(error)}", address=address) from None
        if not route.addresses:
            return _Answer(address, digest, None, "its route has no queues or no brokers", _fault(route))
        if not route.publish_queues and not route.subscribe_queues:
            return _Answer(address, digest, None, "its route has no queues or no brokers")
        return _Answer(address, digest, route, remark)

    # -- the table

    def _enter(self, topic: str, answer: _Answer) -> _Answer:
        """Put a usable route into the table. Return the response; its route, if any, is then the route in use."""
        old, new = self._routes.get(topic), answer.route
        if new is None:
            if old is not None and not old.provisional:
                log = logger.debug if topic in self._doubted else logger.warning
                self._doubted.add(topic)
                said = answer.fault or printable(without_faq(answer.remark) or "no such topic")
                log("name server %s has no route of topic %s: %s; the old route stays in use", answer.name_server, topic, said)
            return answer
        self._digests[topic] = answer.digest
        self._doubted.discard(topic)
        if new is old:
            return answer
        if old is not None and not old.provisional and route_fingerprint(old.data) == route_fingerprint(new.data):
            return answer._replace(route=old)
        return answer._replace(route=self._use(new))

    def _create_by_sending(self, topic: str, model: _Answer, default_queues: int) -> TopicRoute:
        assert model.route is not None
        data = model.route.data
        queues = tuple(
            msgspec.structs.replace(item, read_queue_nums=count, write_queue_nums=count)
            for item in data.queue_datas
            for count in [min(default_queues, max(item.read_queue_nums, 0))]
        )
        logger.warning(
            "topic %s does not exist: the first message creates it on %s with %s queues each, or on only some of these brokers; "
            "do not rely on this in production, create topics beforehand",
            topic,
            ", ".join(sorted(printable(item.broker_name, 80) for item in queues)),
            max((item.write_queue_nums for item in queues), default=0),
        )
        route = topic_route(topic, msgspec.structs.replace(data, queue_datas=queues, order_topic_conf=None), self._lists)
        return self._use(route, provisional=True)

    def _use(self, route: TopicRoute, *, provisional: bool = False) -> TopicRoute:
        self._version += 1
        route = replace(route, version=self._version, provisional=provisional)
        old = self._routes.get(route.topic)
        self._routes[route.topic] = route
        self._brokers.update(route.addresses)
        self._log(route, old)
        for callback in list(self.on_change):
            callback(route)
        return route

    def _log(self, route: TopicRoute, old: TopicRoute | None) -> None:
        topic, now = self._display_name(route.topic), queue_counts(route)
        if old is None:
            logger.debug("first route of topic %s: %s", topic, now)
        elif (before := queue_counts(old)) != now or not old.provisional:
            moved = [f"{name} is now at {at[MASTER_ID]}" for name, at in _moved(old, route)]
            logger.info("route of topic %s: %s -> %s%s", topic, before, now, "".join(f"; {text}" for text in moved))
        if wrong := malformed_addresses(route.data):
            logger.warning("route of topic %s: no client can connect to %s; %s", topic, wrong, _CORRECT)

    def _forget_unused(self, answers: Mapping[str, bool]) -> None:
        """Drop topics that were not used for some time. For each broker that is in no other route, keep one topic that is known to
        the name servers.
        """
        due = self.use.count_poll(answers)
        if due:
            gone = {topic for topic in due if self.use.is_unknown(topic)}
            unused = [topic for topic in due if topic not in gone]
            dropped = frozenset(due)
            kept = [topic for topic in self._routes if topic not in dropped and not self.use.is_unknown(topic)]
            stay = topics_to_keep(unused, kept, self._brokers, lambda topic: self._routes[topic].addresses)
            for topic in due:
                if topic not in stay:
                    self._forget(topic)
            self._forget_brokers()
        recent = machine.monotonic() - REFRESH_SPACING
        self._refreshed = {topic: at for topic, at in self._refreshed.items() if at > recent}

    def _forget(self, topic: str) -> None:
        logger.debug("dropping the route of topic %s, which was not used for some time", topic)
        del self._routes[topic]
        self._digests.pop(topic, None)
        self._doubted.discard(topic)
        if (timer := self._timers.pop(topic, None)) is not None:
            timer.cancel()
        self.use.forget(topic)

    def _forget_brokers(self) -> None:
        """Drop brokers that no route names."""
        named = {name for route in self._routes.values() for name in route.addresses}
        for name in [name for name in self._brokers if name not in named]:
            del self._brokers[name]

    def _refresh_now(self, topic: str) -> None:
        self._timers.pop(topic, None)
        self._refreshed[topic] = machine.monotonic()
        self._asking.start(topic, lambda: self._request(topic))

    def _sweep_now(self) -> None:
        self._sweep = None
        self._sweeping.start("all routes", self.refresh_all)

    def _late(self, topic: str, timeout: float) -> NameServerError:
        names = ", ".join(self._name_servers.addresses)
        text = f"no route of topic {self._display_name(topic)} was found within {timeout:.3g} s; name servers: {names}"
        if self._cluster_found is not None and not self._cluster_found.is_set():
            failure = self._name_servers.failure
            text += (
                "; none has answered since the start" if not self._name_servers.answered.is_set() else "; they know no broker"
            )
            text += f"; the last attempt: {printable(failure, 1000)}" if failure is not None else ""
        return NameServerError(f"{text}; check that they and the brokers run, or raise the timeout")

    def _not_found(self, topic: str, answer: _Answer, create_key: str | None = None) -> TopicNotFoundError:
        if answer.fault:
            text = f"topic {self._display_name(topic)} has no usable route at name server {answer.name_server}: {answer.fault}"
            return TopicNotFoundError(text, address=answer.name_server)
        said = printable(without_faq(answer.remark) or "no such topic")
        text = f"topic {self._display_name(topic)} was not found; name server {answer.name_server} says: {said}"
        if create_key is not None:
            text += (
                f" (and a send cannot create it, because autoCreateTopicEnable is off: the brokers do not offer {create_key})"
            )
        if answer.witnessed:
            return TopicNotFoundError(f"{text}; create it, or check its name", address=answer.name_server)
        text += "; no name server knows a broker, as for some seconds after a start: check that brokers run, and try again"
        error = TopicNotFoundError(text, address=answer.name_server)
        error.retriable = True
        return error


def _fault(route: TopicRoute) -> str:
    """Return why no client can use a route whose brokers have malformed addresses. Return "" if no address is malformed."""
    wrong = malformed_addresses(route.data)
    return f"no client can connect to {wrong}; {_CORRECT}" if wrong else ""


def _moved(old: TopicRoute, new: TopicRoute) -> list[tuple[str, Mapping[int, str]]]:
    """Return the brokers whose master has a different address than in the old route."""
    return [
        (name, ids)
        for name, ids in sorted(new.addresses.items())
        if MASTER_ID in ids and old.addresses.get(name, ids).get(MASTER_ID, ids[MASTER_ID]) != ids[MASTER_ID]
    ]


def _question(topic: str) -> RemotingCommand:
    return request_of(GetRouteInfoRequestHeader(topic=topic, acceptStandardJsonOnly=True))


def _left(deadline: float) -> float:
    return max(deadline - machine.monotonic(), 0.0)


def _brokers(route: TopicRoute | None) -> frozenset[tuple[str, bool]]:
    return frozenset() if route is None else listed_brokers(route.addresses)


def _weight(route: TopicRoute | None) -> tuple[int, bool]:
    """Return a weight that is greater for a more complete route. Brokers and masters are compared first, then whether there is an
    order conf.
    """
    return len(_brokers(route)), route is not None and bool(route.data.order_topic_conf)


def _lacks(route: TopicRoute, known: TopicRoute) -> bool:
    """Return whether a route lacks a broker, a master or the order conf of the known route."""
    return bool(_brokers(known) - _brokers(route)) or bool(known.data.order_topic_conf and not route.data.order_topic_conf)


def _has_route(answer: _Answer, known: TopicRoute | None = None) -> bool:
    """Return whether a response has a route in which nothing of ``known`` is missing."""
    return answer.route is not None and (known is None or not _lacks(answer.route, known))
