"""The life cycle of a producer, and the hot path's check that the producer runs on the current loop and thread."""

from __future__ import annotations

import os
import weakref
from asyncio import get_running_loop
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import NoReturn, Unpack, cast

from rmq_protocol.constants import DEFAULT_PRODUCER_GROUP

from .. import machine
from ..client import ClientInstance, LifeCycle, LifeState
from ..config import ClientConfig, check_group
from ..errors import ConfigError
from ..transport import check_not_forked, generation
from .config import ProducerConfig, ProducerOptions, split_options
from .core import ProducerCore
from .health import ProducerHealth, ProducerState, health_of


class ProducerLife(LifeCycle):
    """The life cycle, state and health of a producer; subclasses add the methods that send."""

    _waits_for_requests = True

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        client: ClientConfig | None = None,
        config: ProducerConfig | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_group(group)
        if group == DEFAULT_PRODUCER_GROUP:
            raise ConfigError(f"producer group {group} is reserved by RocketMQ; choose another name")
        self.group = str.__str__(group)  # the encoders take str only, no subclass
        client_config, self.config = split_options(type(self).__name__, namesrv, client, config, options)
        super().__init__(client_config, label=f"producer {self.group}", stop_timeout=self.config.stop_timeout)
        self._sender: ProducerCore = cast(ProducerCore, None)
        self._loop_runs: Callable[[], bool] = _never
        # With ``_loop_runs``: a check for the loop of ``start`` at half the cost of ``get_running_loop``.
        self._thread = 0

    @property
    def state(self) -> ProducerState:
        """The producer's state in its life cycle."""
        return ProducerState[self._state.name]

    def health(self) -> ProducerHealth:
        """Return the producer's condition, from any thread; send no request, never waits and never raises."""
        life, instance, sender = self._state, self._instance, self._sender
        state = ProducerState[life.name]
        forked = state not in (ProducerState.NEW, ProducerState.STOPPED) and self._generation != generation()
        started = sender if instance is not None else None
        return health_of(self.group, state, self._idle_problem(life), instance, started, forked=forked)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group} {self._state.value}>"

    # -- life cycle

    async def start(self) -> None:
        """Join the shared client instance and register the group.

        Fetch the routes of ``topics`` and send their brokers heartbeats (with ``start_without_cluster``, once there is a
        cluster).

        Log a warning for a topic of ``topics`` without a route and for a broker that does not answer. A call on a running
        producer has no effect; one during another ``start`` waits for its end and raises its error, or starts if that was
        cancelled.

        After an error the producer holds no connection, registration or task.

        Raises:
            NameServerError: When no name server is configured, or none answers within ``request_timeout`` and
                ``start_without_cluster`` is False.
            ConfigError: When the group is already registered with the same client settings, or is too long with its namespace,
                and for an invalid address in ``NAMESRV_ADDR``.
            RequestTimeoutError: When the system's certificate authorities are not read in that time.
            ClientStateError: During ``stop``, and when ``stop`` is called meanwhile.
            WrongLoopError, ForkedError: When the producer runs on another loop or in the parent process.
        """
        await super().start()
        self._loop_runs, self._thread = get_running_loop().is_running, get_ident()
        _started.add(self)

    async def stop(self, timeout: float | None = None) -> None:
        """Accept no more messages, wait up to ``timeout`` seconds (default ``stop_timeout``) for accepted ones, then close.

        Messages that are unanswered by then fail with ClientStateError. Allowed before ``start()``, during it and more than
        once; a call during another ``stop()`` waits for its end. The producer can be started again.

        Raises:
            TypeError, ValueError: For a ``timeout`` that is not a number of seconds, 0 or more.
            WrongLoopError: On another loop.
            ForkedError: In a forked child.
        """
        await super().stop(timeout)

    async def _open(self, instance: ClientInstance) -> None:
        self._sender = await self._join(instance)

    async def _close(self, instance: ClientInstance, deadline: float) -> None:
        self._loop_runs = _never
        try:
            await self._drain(max(0.0, deadline - machine.monotonic()))
        except BaseException:
            deadline = machine.monotonic()
            raise
        finally:
            await instance.unregister_producer(self._sender.producer_group, max(0.0, deadline - machine.monotonic()))

    async def _drain(self, budget: float) -> None:
        """Wait up to ``budget`` seconds for accepted messages, then fail the rest."""
        await self._sender.close(budget)

    async def _join(self, instance: ClientInstance) -> ProducerCore:
        """Make the sender, register the group and fetch the routes of ``topics``."""
        sender = ProducerCore(self.group, self.config, instance)
        try:
            check_group(sender.producer_group)
            instance.register_producer(sender.producer_group)
            try:
                await self._starting.run(sender.topics.warm_up())
                self._check_starting()
            except BaseException:
                await instance.unregister_producer(sender.producer_group, 0.0)
                raise
        except BaseException:
            await sender.close(0.0)
            raise
        return sender

    # -- inside

    def _usable(self) -> ProducerCore:
        """Return the sender.

        Raises:
            ClientStateError, WrongLoopError, ForkedError: If calls are not possible here and now.
        """
        if not self._loop_runs() or get_ident() != self._thread:
            self._refuse()
        return self._sender

    def _refuse(self) -> NoReturn:
        check_not_forked(self._generation)
        if self._state is not LifeState.RUNNING:
            raise self._not_running()
        raise self._wrong_loop()

    def _advice(self) -> str:
        if self._state not in (LifeState.NEW, LifeState.STOPPED):
            return super()._advice()
        return f": send inside `async with {type(self).__name__}(...)`, or await its start() first"


def check_here(producer: ProducerLife) -> None:
    """Raise ForkedError for a running producer of the parent process, WrongLoopError for one that runs on another loop."""
    if producer.state is ProducerState.RUNNING:
        producer._running_instance()  # noqa: SLF001 - this module's class


def _never() -> bool:
    return False


_started: weakref.WeakSet[ProducerLife] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Make started producers refuse to send: a child process must not use the sockets of its parent."""
    for producer in list(_started):
        producer._loop_runs = _never  # noqa: SLF001 - this module's class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
