"""The life cycle of a producer, and a fast check that a producer is used on the event loop and thread on which it runs."""

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
from .config import ProducerConfig, ProducerOptions, split_producer_options
from .core import ProducerCore
from .health import ProducerHealth, ProducerState, health_of


class ProducerLife(LifeCycle):
    """The life cycle, state and health of a producer. Subclasses add the methods that send."""

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
        self.group = str.__str__(group)  # the encoders accept only str, not a subclass
        client_config, self.config = split_producer_options(type(self).__name__, namesrv, client, config, options)
        super().__init__(client_config, label=f"producer {self.group}", stop_timeout=self.config.stop_timeout)
        self._sender: ProducerCore = cast(ProducerCore, None)
        self._loop_runs: Callable[[], bool] = _never
        # Together with ``_loop_runs``, this checks for the loop of ``start`` at half the cost of ``get_running_loop``.
        self._thread = 0

    @property
    def state(self) -> ProducerState:
        """The current state in the producer's life cycle."""
        return ProducerState[self._state.name]

    def health(self) -> ProducerHealth:
        """Return the producer's condition. May be called from any thread; it sends no request, does not wait and does not raise."""
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

        Fetch the routes of ``topics`` and send heartbeats to their brokers (with ``start_without_cluster``, once a cluster is
        found). For a topic in ``topics`` that has no route, and for a broker that does not respond, log a WARNING.

        A call on a running producer has no effect. A call during another ``start`` waits until that call ends and raises its error;
        if that call is cancelled, this call starts the producer.

        After an error, the producer holds no connection, registration or task.

        Raises:
            NameServerError: If no name server is configured, or if none responds within ``request_timeout`` and
                ``start_without_cluster`` is False.
            ConfigError: If the group is already registered with the same client settings, if it is too long with its namespace, or
                if ``NAMESRV_ADDR`` contains an invalid address.
            RequestTimeoutError: If the system's certificate authorities are not read within ``request_timeout``.
            ClientStateError: If ``stop`` is running, or is called during the start.
            WrongLoopError, ForkedError: If the producer is running on another loop or in the parent process.
        """
        await super().start()
        self._loop_runs, self._thread = get_running_loop().is_running, get_ident()
        _started.add(self)

    async def stop(self, timeout: float | None = None) -> None:
        """Accept no more messages, wait for accepted messages, then close.

        Messages that are still unanswered after ``timeout`` seconds fail with ClientStateError. ``stop`` may be called before and
        during ``start()``, and more than once; a call during another ``stop()`` waits until that call ends. The producer can be
        started again.

        Args:
            timeout: Maximum seconds to wait for accepted messages. The default is ``stop_timeout``.

        Raises:
            TypeError, ValueError: If ``timeout`` is not a number of seconds of at least 0.
            WrongLoopError: If the producer was started on another loop.
            ForkedError: If the process is a fork of the process that started the producer.
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
        """Wait at most ``budget`` seconds for accepted messages, then fail the remaining ones."""
        await self._sender.close(budget)

    async def _join(self, instance: ClientInstance) -> ProducerCore:
        """Make the ProducerCore, register the group and fetch the routes of ``topics``."""
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
        """Return the ProducerCore, which sends messages.

        Raises:
            ClientStateError: If the producer is not running.
            WrongLoopError: If the producer was started on another loop.
            ForkedError: If the process is a fork of the process that started the producer.
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
    """Check that a running producer may be used here.

    Raises:
        ForkedError: If the producer is running in the parent process.
        WrongLoopError: If the producer is running on another loop.
    """
    if producer.state is ProducerState.RUNNING:
        producer._running_instance()  # noqa: SLF001 - this module's class


def _never() -> bool:
    return False


_started: weakref.WeakSet[ProducerLife] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Make started producers refuse to send, because a child process must not use the sockets of its parent."""
    for producer in list(_started):
        producer._loop_runs = _never  # noqa: SLF001 - this module's class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
