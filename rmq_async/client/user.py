"""The base class of PullConsumer and Admin: a life cycle, and calls that a stop ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from rmq_protocol.command import RemotingCommand

from .. import machine
from .._ordered import OrderedSet
from ..config import ClientConfig
from ..errors import ClientStateError
from .instance import ClientInstance
from .lifecycle import LifeCycle

__all__ = ["ClientUser"]

STOP_TIMEOUT: Final = 3.0
"""Seconds; the default of ``stop``."""


class ClientUser(LifeCycle):
    """A user of the shared instance whose ``stop`` ends its calls.

    Subclasses register with the instance in ``_join`` and unregister in ``_leave``.
    """

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config, label=f"this {type(self).__name__}", stop_timeout=STOP_TIMEOUT)
        self._calls: OrderedSet[asyncio.Future[RemotingCommand]] = OrderedSet()
        self._scopes: OrderedSet[asyncio.Timeout] = OrderedSet()

    @property
    def config(self) -> ClientConfig:
        return self.client_config

    # -- for subclasses

    _client = LifeCycle._running_instance  # noqa: SLF001

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[ClientInstance]:
        """Yield the running instance for a call of several steps. Raises as ``_client`` does, and ClientStateError when
        ``stop`` ends the call.
        """
        instance = self._client()
        scope = asyncio.timeout(None)  # a cancellation scope: other cancellations pass through
        try:
            async with scope:
                self._scopes.add(scope)
                yield instance
        except TimeoutError:
            if scope.expired():
                raise self._stopped() from None
            raise
        finally:
            self._scopes.discard(scope)

    def _join(self, instance: ClientInstance) -> None:
        """Join the instance; called once, when it runs."""

    async def _leave(self, instance: ClientInstance, timeout: float) -> None:
        """Leave the instance within ``timeout`` seconds; called once, before its release."""

    async def _open(self, instance: ClientInstance) -> None:
        self._join(instance)

    async def _close(self, instance: ClientInstance, deadline: float) -> None:
        for call in self._calls:
            if not call.done():
                call.set_exception(self._stopped())
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            scope.reschedule(now)
        self._scopes.clear()
        await self._leave(instance, max(deadline - machine.monotonic(), 0.0))

    def _stopped(self) -> ClientStateError:
        return ClientStateError(f"{self._label} was stopped during the call; start it again to repeat that")
