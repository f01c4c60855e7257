"""The session of a consumer of lite topics, from its start to its stop.

It pops as members that pop do, with one pop for each master. The messages of one lite topic are handled one after the other:
brokers deliver no further message of a lite topic to the group before all its popped messages are acknowledged. A failed message is
handled again here, and the messages behind it wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from contextvars import Context
from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from ..._asyncio import StopScope
from ..._text import printable
from ...client import ClientInstance
from ...errors import RocketMQError
from ...health import Problem, ProblemCode
from ..config import ConsumerConfig
from ..held_queue import Waiting
from ..outcome import Outcome
from ..pop.acks import Lease
from ..pop.core import ACKS_WITHIN
from ..pop.pop_session import PopSession
from ..subscription import Subscription
from .lite_member import LiteMember
from .lite_requests import LiteRequests
from .lite_subscriptions import LiteStart, LiteSubscriptions

logger = logging.getLogger(__name__)

CLEAR_WITHIN: Final = 1.0
IDLE_LOOK: Final = 0.02


class LiteSession(PopSession):
    """The session of a consumer of lite topics.

    Args:
        topic: Name of the parent topic on the wire.
        lost: Called with a lite topic that another client of an exclusive group has taken over.
    """

    member: LiteMember
    requests: LiteRequests

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        label: str,
        context: Context,
        lost: Callable[[str], None],
    ) -> None:
        self.topic = next(iter(subscriptions))
        super().__init__(instance, group, subscriptions, config, label, context)
        self.lite = LiteSubscriptions(instance, self.group, self.topic, self.requests, self._masters)
        self.outcomes.copies_only = True
        self._lost = lost

    def _new_member(self) -> LiteMember:
        return LiteMember(self.instance, self.group, self.subscriptions, self.config, self.topic)

    def _new_requests(self) -> LiteRequests:
        return LiteRequests(self.instance, self.group, self.topic)

    def _masters(self) -> list[str]:
        return [broker for _, broker in self.member.brokers() if self.instance.routes.address_of(broker) is not None]

    def _again(self, subscription: Subscription, item: Waiting, due: float) -> None:
        """Handle a message again here. Its lease is extended, and the messages behind it wait."""
        lite_topic = item.message.lite_topic or ""
        if self.closing or lite_topic not in self.lite.names:
            self._message_ended(item, Outcome.ABANDONED)
            self.arrivals.give_back([_lease(item)])
        else:
            self.dispatcher.again(subscription, item, due)

    # -- start and stop

    async def open(self, starting: StopScope) -> None:
        await super().open(starting)
        self.supervisor.run("lite topics", self.lite.run)

    async def close(self, deadline: float) -> None:
        self.quiesce()
        if self.lite.names:
            await self.lite.clear(CLEAR_WITHIN)
        await super().close(deadline)

    def _add_source(self, topic: str, broker: str) -> None:
        super()._add_source(topic, broker)
        self.sources[topic, broker].most_beside = 0  # one pop empties the events of this client

    def serve(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        if command.code != RequestCode.NOTIFY_UNSUBSCRIBE_LITE:
            return super().serve(command)
        fields = command.ext_fields or {}
        name = fields.get("liteTopic") or ""
        if fields.get("clientId") == self.instance.client_id and name in self.lite.names:
            logger.warning(
                "group %s: another client has subscribed to lite topic %s, which ends the subscription here",
                self.instance.names.display_name(self.group),
                printable(name),
            )
            self.lite.forget([name])
            self.drop(name)
            self._lost(name)
        return None

    async def subscribe(self, names: Iterable[str], start: LiteStart) -> None:
        """Subscribe to lite topics, as ``LiteSubscriptions.add`` does."""
        if start != "last":
            await self._send_acks()
        await self.lite.add(names, start)

    async def unsubscribe(self, names: Collection[str]) -> None:
        """Unsubscribe from lite topics. Give back the messages that wait for a call."""
        gone = self.lite.forget(names)  # first, so that no message of them is handled again here
        try:
            await self._send_acks()
            await self.lite.remove(gone)
        finally:  # now this client does not get them again
            for name in gone:
                if name not in self.lite.names:
                    self.drop(name)
        with suppress(TimeoutError):  # a later start position would be moved by a message that comes back after it
            async with asyncio.timeout(ACKS_WITHIN):
                await self.arrivals.all_given_back()

    async def _send_acks(self) -> None:
        """Send the pending acknowledgements, because a broker that gets them after a change of the offset would move it again."""
        try:
            async with asyncio.timeout(ACKS_WITHIN):
                await self.core.acks.flush()
        except (TimeoutError, RocketMQError) as error:
            logger.debug("group %s: acknowledgements were not confirmed: %s", self.group, printable(repr(error), 300))

    def drop(self, lite_topic: str) -> None:
        """Give back the messages of a lite topic that wait for a call."""
        for source in self.sources.values():
            gone = [_lease(item) for item in self.dispatcher.drop_items(source.held, failed=True, key=lite_topic)]
            for lease in gone:
                self.free(lease)
            self.arrivals.give_back(gone, 0.0)
        self.dispatcher.pump()

    # -- reports

    async def until_idle(self) -> None:
        """Wait until this consumer has no message and no pending acknowledgement."""
        while True:
            held = any(credits.taken for credits in self.credits.values())
            if not (held or len(self.give_backs) or self.core.acks.pending):
                return
            await asyncio.sleep(IDLE_LOOK)

    def problems(self) -> list[Problem]:
        found = super().problems()
        for broker, error in list(self.lite.errors.items()):
            text = f"broker {printable(broker)} does not have the lite topics of this consumer: {printable(error, 300)}"
            found.append(Problem(ProblemCode.GROUP_UNKNOWN, text, broker=broker))
        return found


def _lease(item: Waiting) -> Lease:
    assert isinstance(item, Lease)
    return item
