"""What the consumers of groups have in common: one run after the other, from start to stop, and its reports."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..client import ClientInstance, LifeCycle, LifeState, Names
from ..config import ClientConfig, check_group, check_int
from ..errors import ClientStateError
from ..health import Problem, ProblemCode
from ..timeouts import checked_timeout, stop_budget
from ..transport import generation
from .config import ConsumerConfig
from .handling import Settled
from .reports import ConsumerHealth, ConsumerStats
from .session import MemberSession

logger = logging.getLogger(__name__)


class GroupMember(LifeCycle):
    """A member of a group that can be started and stopped again and again. Each run has a session of its own.

    Args:
        group: Name of the group.
        kind: The kind of consumer, for logs and errors.

    Raises:
        InvalidGroupError: For an invalid group name.
    """

    def __init__(self, group: str, kind: str, client_config: ClientConfig, config: ConsumerConfig) -> None:
        check_group(group)
        self.group = str.__str__(group)
        self.config = config
        super().__init__(client_config, label=f"{kind} {self.group}", stop_timeout=config.stop_timeout)
        self._names = Names(client_config.namespace)
        self._wire_group = self._names.wire(self.group)
        check_group(self._wire_group)
        self._session: MemberSession | None = None
        self._last_stats = ConsumerStats()
        self._stopping: asyncio.Task[None] | None = None
        """The task of a stop that was begun in a handler, a callback or the body of an iteration."""
        self._over: asyncio.Event | None = None
        """The event that ``run`` waits for and ``stop`` sets; None when ``run`` is not active."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group} {self._state.value}>"

    async def stop(self, timeout: float | None = None) -> None:
        """Leave the group, wait for running handlers, commit, and release the queues.

        Do nothing if the consumer has not been started or is already stopped.

        Handlers that still run are cancelled after ``handover_timeout``, and at the latest 1 s before the end of ``timeout``. A
        plain function cannot be cancelled: its thread continues, and the process does not exit until the function returns.

        If a handler, a callback or the body of an iteration calls this method, the method begins the stop and returns at once.
        Await it directly there: a handler that awaits it through another task (``asyncio.wait_for`` before Python 3.12,
        ``gather``) waits for itself until ``handover_timeout`` cancels it.

        When messages are read by hand, the stop waits for messages in hand as it waits for running handlers. It does not wait for
        messages that the calling task has received with ``receive()``, because that task cannot settle them meanwhile.

        Args:
            timeout: Maximum seconds for the stop; None for ``stop_timeout``. The last commits and unlocks have 1 s even if
                ``timeout`` is shorter.

        Raises:
            TypeError: For a ``timeout`` that is not a number.
            ValueError: For a ``timeout`` below 0 or NaN.
            ForkedError: In a forked child.
            WrongLoopError: On another event loop.
        """
        stop_budget(timeout, self._stop_timeout)  # raises for a wrong value, before the stop begins
        session = self._session
        if self._over is not None:
            self._over.set()
        if session is not None and session.is_own_task(asyncio.current_task()):
            if self._stopping is None:
                session.quiesce()
                self._stopping = asyncio.get_running_loop().create_task(self.stop(timeout), name=f"rmq_async stop {self.group}")
            return
        if session is not None and session.by_hand is not None:
            session.by_hand.let_go(asyncio.current_task(), received=True)
        await super().stop(timeout)

    async def run(self, *, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        """Start, run until one of ``signals`` arrives or ``stop()`` is called, and stop.

        A signal during the stop cancels the running handlers at once. Outside the main thread, and on Windows, no signal is
        handled.

        Raises:
            ClientStateError: If another task is in ``run()``. The errors of ``start()`` also propagate.
        """
        if self._over is not None:
            raise ClientStateError(f"{self._label} is already in run(); await that call, or call stop() first")
        loop = asyncio.get_running_loop()
        self._over = over = asyncio.Event()
        aborted = asyncio.Event()

        def received() -> None:
            (aborted if over.is_set() else over).set()

        handled = [each for each in signals if _handles(loop, each, received)]
        try:
            await self.start()
            await over.wait()
            stop = loop.create_task(self.stop(), name=f"rmq_async stop {self.group}")
            abort = loop.create_task(aborted.wait(), name=f"rmq_async abort {self.group}")
            try:
                await asyncio.wait([stop, abort], return_when=asyncio.FIRST_COMPLETED)
                if not stop.done() and self._session is not None:
                    logger.warning("%s: a signal during the stop cancels the running handlers", self._label)
                    self._session.abort()
                await stop
            finally:
                abort.cancel()
                with suppress(asyncio.CancelledError):
                    await abort
        finally:
            for each in handled:
                loop.remove_signal_handler(each)
            self._over = None
            await self.stop()

    async def _close(self, instance: ClientInstance, deadline: float) -> None:
        session = self._session
        assert session is not None
        try:
            await session.close(deadline)
        finally:
            self._last_stats = session.stats()
            self._session = None
            self._stopping = None

    # -- watching

    def stats(self) -> ConsumerStats:
        """Return the counters since ``start()``.

        Before the first start, all counters are 0. After a stop, they are the final counters of the last run. The method makes no
        request and may be called from any thread.
        """
        session = self._session
        return self._last_stats if session is None else session.stats()

    def health(self) -> ConsumerHealth:
        """Return the consumer's condition. The method makes no request, never raises and may be called from any thread."""
        state, session = self._state, self._session
        if state in (LifeState.RUNNING, LifeState.STOPPING) and self._generation != generation():
            text = f"{self._label} was started before os.fork(); create and start a new one in the child process"
            return ConsumerHealth(False, False, (Problem(ProblemCode.FORKED, text),), None, None)
        if session is None or state is not LifeState.RUNNING:
            problem = self._idle_problem(state) or Problem(ProblemCode.STARTING, f"{self._label} is {state.value}")
            return ConsumerHealth(True, False, (problem,), None, None)
        return session.health()

    # -- tests

    async def wait_settled(self, n: int, *, timeout: float = 5.0) -> tuple[Settled, ...]:
        """Wait for the next ``n`` attempts that have an outcome other than ABANDONED, and return them. The first call counts from
        ``start()``, and each further call continues after the attempts that the previous call returned.

        It is meant for tests. While no call of this method waits, at most 1,000 messages with 1 MiB of bodies are kept for it;
        later messages are left out.

        Args:
            n: Number of attempts, 0 to 2^31.
            timeout: Maximum seconds to wait.

        Raises:
            TimeoutError: After ``timeout`` seconds.
            ClientStateError: If the consumer does not run.
            ConfigError: For an ``n`` that is not a whole number from 0 to 2^31.
            TypeError: For a ``timeout`` that is not a number.
            ValueError: For a ``timeout`` that is not above 0.
        """
        check_int("n", n, 0, 1 << 31)
        return await self._running_session().settled.wait(n, checked_timeout(timeout))

    async def wait_idle(self, *, timeout: float = 5.0) -> None:
        """Wait until all messages that are now in this member's queues are settled, and no handler call runs.

        With ``mode="pop"``, wait until all messages of the topics have been popped by any member, and this member holds none.

        It is meant for tests. It does not wait for messages whose next attempt is delayed by a broker.

        Args:
            timeout: Maximum seconds to wait.

        Raises:
            TimeoutError: After ``timeout`` seconds.
            ClientStateError: If the consumer does not run.
            RocketMQError: If a request for offsets fails.
            TypeError: For a ``timeout`` that is not a number.
            ValueError: For a ``timeout`` that is not above 0.
        """
        session = self._running_session()
        async with asyncio.timeout(checked_timeout(timeout)):
            await session.until_idle()

    def _running_session(self) -> MemberSession:
        """Return the session, also during a start and a stop, because callbacks and handlers run then.

        Raises:
            ClientStateError: If there is no session.
            ForkedError: In a forked child.
            WrongLoopError: On another event loop.
        """
        session = self._session
        if session is None or self._state not in (LifeState.STARTING, LifeState.STOPPING):
            self._running_instance()
            assert session is not None
        session.instance.check_usable()
        return session


def _handles(loop: asyncio.AbstractEventLoop, number: signal.Signals, function: Callable[[], object]) -> bool:
    """Make the loop call ``function`` for a signal. Return False if it cannot (outside the main thread, and on Windows)."""
    try:
        loop.add_signal_handler(number, function)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        logger.debug("%s is not handled: %s", number.name, error)
        return False
    return True
