"""The parts of a broker that serve lite topics."""

from __future__ import annotations

from rmq_protocol.lite import LITE_PREFIX

from .calls import ClientCalls
from .clock import Clock
from .faults import PopFaults
from .held_pops import HeldPops
from .lite_acks import LiteAcks
from .lite_admin import LiteAdminProcessor
from .lite_control import LiteControlProcessor
from .lite_events import LiteEvents
from .lite_pops import LitePopProcessor
from .lite_settings import LiteSettings
from .lite_subscriptions import LiteSubscriptions
from .lite_topics import LiteTopics
from .ordered_pops import OrderedQueue, OrderedQueues
from .server import Connection
from .service import Handler, Reply
from .state import BrokerState
from .topics import Topic


class LiteServing:
    """The parts of a broker that serve lite topics.

    Args:
        reply: Writes the responses to pops that were held.

    Attributes:
        acks: Serves acks and changes of invisible times.
    """

    def __init__(
        self, state: BrokerState, calls: ClientCalls, clock: Clock, settings: LiteSettings, faults: PopFaults, reply: Reply
    ) -> None:
        self._held = HeldPops(clock, reply)
        self._ordered = OrderedQueues(clock, self._freed, when_free=True)
        self._topics = LiteTopics(state, self._ordered, clock, settings)
        self._subscriptions = LiteSubscriptions(state, self._topics, self._ordered, calls, clock, settings.max_subscriptions)
        self._events = LiteEvents(state, self._topics, self._subscriptions, self._held, clock)
        self._topics.deleted = self._subscriptions.forget
        self.acks = LiteAcks(state, self._topics, self._events, self._ordered, clock)
        self._pops = LitePopProcessor(state, self._events, self._ordered, self._held, clock, faults)
        self._control = LiteControlProcessor(state, self._subscriptions)
        self._admin = LiteAdminProcessor(state, self._topics, self._subscriptions, self._events, self._ordered)

    def handlers(self) -> dict[int, Handler]:
        return {**self._pops.handlers(), **self._control.handlers(), **self._admin.handlers()}

    def start(self) -> None:
        for part in (self._ordered, self._topics, self._subscriptions, self._events):
            part.start()

    def stop(self) -> None:
        for part in (self._ordered, self._topics, self._subscriptions, self._events):
            part.stop()

    def close(self) -> None:
        """Drop all held pops without sending responses."""
        self._held.close()

    def forget(self) -> None:
        """Forget subscriptions, events and popped queues, which a new process would not have."""
        self._ordered.forget(lambda queue: True)
        self._subscriptions.clear()
        self._events.clear()

    def arrived(self, name: str) -> None:
        """Dispatch a light queue in which a message was stored."""
        self._topics.stored()
        if name.startswith(LITE_PREFIX):
            self._events.dispatch(name)

    def deleted(self, topic: Topic) -> None:
        """Delete the lite topics of a topic that was deleted."""
        self._topics.delete_topic(topic)

    def disconnected(self, connection: Connection) -> None:
        self._held.disconnected(connection)
        self._subscriptions.disconnected(connection)

    def resumed(self, connection: Connection) -> None:
        self._held.resumed(connection)

    def _freed(self, queue: OrderedQueue) -> None:
        self._events.dispatch(queue.topic, queue.group)
