"""The registrations of a consumer at its client instance and its event loop, from start to stop, in either mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..client import ClientInstance, GroupListener, TopicRoute
from ..hooks import request_hooks
from .blocking import Block, Find, LoopWatch
from .call_hooks import CallHooks
from .closed_queues import ClosedQueues
from .config import ConsumerConfig
from .subscription import Subscription
from .tracer import ConsumeTracer

__all__ = ["Attached"]


class Attached:
    """Registers one consumer at its client instance and its event loop: its listener for requests of brokers, its routes in
    use, its hooks, its tracer, and its watch for functions that block the loop.

    ``group``, ``topics``: on the wire. ``blocking``: returns the name of the user's function that a task calls.
    ``route_changed``: called with each route that has changed.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: ConsumerConfig,
        topics: Sequence[str],
        blocking: Find,
        route_changed: Callable[[TopicRoute], None],
    ) -> None:
        self._instance = instance
        self._group = group
        self._topics = topics
        self._blocking = blocking
        self._route_changed = route_changed
        self._watch: LoopWatch | None = None
        self.closed = ClosedQueues(instance, topics, group)
        self.tracer = ConsumeTracer(instance, group, config.trace) if config.trace else None
        self.request_hooks = request_hooks(config.hooks)
        self.call_hooks = CallHooks(config.hooks if self.tracer is None else (*config.hooks, self.tracer)) or None

    @property
    def blocked(self) -> Block | None:
        """The newest function of the user that has blocked the event loop; None without one. From any thread."""
        return None if self._watch is None else self._watch.newest(self._blocking)

    def begin(self, listener: GroupListener) -> None:
        """Registers the consumer. Raises ConfigError, without any effect, if the client has a consumer of the group
        already."""
        instance = self._instance
        instance.group_requests.add(self._group, listener)
        self._watch = LoopWatch.join(self._blocking, instance.loop_monitor.late)
        for hook in self.request_hooks:
            instance.pool.hooks.add(hook)
        for topic in self._topics:
            instance.routes.use.hold(topic)
        instance.routes.on_change += [self._route_changed, self.closed.route_changed]

    def hurry(self) -> None:
        """Sends traces without waiting for more."""
        if self.tracer is not None:
            self.tracer.hurry()

    def hear_no_more(self) -> None:
        """Ends the notifications from brokers and routes."""
        self._instance.group_requests.remove(self._group)
        callbacks = self._instance.routes.on_change
        for each in (self._route_changed, self.closed.route_changed):
            if each in callbacks:
                callbacks.remove(each)

    async def end_traces(self, end: float) -> None:
        """Sends the gathered traces until ``end`` (monotonic), and drops those that are left then."""
        if self.tracer is not None:
            try:
                await self.tracer.flush(end)
            finally:
                self.tracer.end()
            await self.tracer.ended()

    def end(self, subscriptions: Iterable[Subscription]) -> None:
        """Removes the registrations that ``hear_no_more`` leaves: routes in use, hooks and the watch. ``subscriptions``: those of
        the consumer; a change of their options calls nothing any more."""
        for topic in self._topics:
            self._instance.routes.use.release(topic)
        if self._watch is not None:
            self._watch.leave(self._blocking)
        for hook in self.request_hooks:
            self._instance.pool.hooks.remove(hook)
        for subscription in subscriptions:
            subscription.wake = _nothing


def _nothing() -> None:
    """Does nothing, for a consumer that does not run."""
