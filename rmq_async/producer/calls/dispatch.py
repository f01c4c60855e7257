"""The state that the calls of one producer share: settings, connections, routing, and the calls that are in their retry loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from rmq_protocol.errors import RocketMQError
from rmq_protocol.send_codec import SendReply

from ... import machine
from ..._asyncio import WaitFor
from ..._ordered import OrderedSet
from ...client import ClientInstance
from ...errors import ClientStateError
from ...results import SendStatus
from ...transport import Connection
from ..admission import Call
from ..config import ProducerConfig
from ..encoding import Frames
from ..routing import Router, Target, TopicQueues
from .recovery import Recovery
from .retry_policy import Rules, attempt_cap, connect_cap

SEND_OK: Final = SendStatus.SEND_OK


class Dispatch:
    """The objects that the calls of a producer use.

    Attributes:
        calls: For each call in its retry loop, the function that ends the call with ClientStateError unless it has a result.
        closed: Whether the producer has stopped, so that no call makes a further attempt.
        submit: ``Frames.submit``, which queues one attempt on its connection.
        owner: The object that identifies this producer's requests in the connections' request tables.
        window: Maximum number of sends in flight on one connection.
        wait: Waits for a connection attempt, as ``Flight.wait`` does, but raises ClientStateError if the producer stops.
    """

    __slots__ = (
        "calls", "closed", "config", "connections", "create_future", "faults", "lite", "owner", "pool", "recovery", "replication",
        "retry_not_ok", "router", "submit", "wait", "window", "wire",
    )  # fmt: skip

    def __init__(
        self,
        config: ProducerConfig,
        instance: ClientInstance,
        router: Router,
        recovery: Recovery,
        wire: Frames,
        wait: WaitFor[Connection],
    ) -> None:
        self.config = config
        self.pool = instance.pool
        self.connections = instance.pool.open
        self.router = router
        self.recovery = recovery
        self.replication = instance.replication
        self.lite = instance.lite_support
        self.wire = wire
        self.submit = wire.submit
        self.owner = wire.owner
        self.window = config.broker_window
        self.wait = wait
        self.faults = router.faults
        self.retry_not_ok = config.retry_another_broker_when_not_store_ok
        self.create_future: Callable[[], asyncio.Future[SendReply]] = asyncio.get_running_loop().create_future
        self.calls: OrderedSet[Callable[[], None]] = OrderedSet()
        self.closed = False

    def rules(self, call: Call[Any]) -> Rules:
        """Return the settings that the retry policy needs for ``call``."""
        return Rules(call.retries, self.config.retry_codes, self.config.attempt_timeout)

    def serves(self, connection: Connection, call: Call[Any]) -> bool:
        """Return whether the broker is known to serve the lite topic of ``call``, or the call has none."""
        return call.lite_topic is None or self.lite.is_known(connection, self.router.topics.wire_topic(call.outgoing.topic))

    def is_unconfirmed(self, result: Any) -> bool:
        """Return whether ``retry_another_broker_when_not_store_ok`` is set and the status of ``result`` is not SEND_OK."""
        return self.retry_not_ok and result.status is not SEND_OK

    def first_deadline(self, now: float, deadline: float, retries: int) -> float:
        """Return the deadline of a first attempt that begins at ``now``, if there are other brokers to try.

        Without retries, it is ``deadline``. Otherwise it is the end of the attempt's time limit (``attempt_cap``).
        """
        if not retries:
            return deadline
        return now + attempt_cap(deadline - now, retries + 1, self.config.attempt_timeout)

    async def connect(self, target: Target, deadline: float) -> RocketMQError | None:
        """Wait for a connection to the broker of ``target``. Return None, or the error of the connection attempt.

        Raises:
            ClientStateError: If the producer stops.
        """
        if target.address in self.connections:
            return None
        try:
            await self.pool.connect(target.address, max(0.0, deadline - machine.monotonic()), self.wait)
        except ClientStateError:
            raise
        except RocketMQError as error:
            return error
        return None

    async def connect_first(
        self, topic_queues: TopicQueues, target: Target, deadline: float, retries: int
    ) -> RocketMQError | None:
        """Call ``connect`` for a first attempt.

        If a retry may go to another broker, wait no longer than the attempt's time limit, and do not wait if a new connection
        attempt is delayed after a failure.
        """
        if target.address in self.connections:
            return None
        if topic_queues.several and retries:
            refusal = self.pool.refusal(target.address)
            if refusal is not None:
                return refusal
            return await self.connect(target, self.first_deadline(machine.monotonic(), deadline, retries))
        return await self.connect(target, self.connect_deadline(target, deadline))

    def connect_deadline(self, target: Target, deadline: float) -> float:
        """Return the time until which an attempt without a time limit of its own waits for its connection.

        It is ``connect_cap`` from now. While new connection attempts to the address are delayed after a failure, it is
        ``deadline``, because a newer route was requested after that failure.
        """
        now = machine.monotonic()
        return deadline if self.pool.backing_off(target.address) else now + connect_cap(deadline - now)


def stopped(*, maybe_stored: bool) -> ClientStateError:
    """Return the error of a call that was unfinished when its producer stopped."""
    if maybe_stored:
        error = ClientStateError(
            "the producer was stopped before the response arrived; the message may have been stored; use a longer stop_timeout"
        )
    else:
        error = ClientStateError("the producer was stopped before the message was stored; use a longer stop_timeout")
    error.maybe_stored = maybe_stored
    return error
