"""The detector (``detector=True``) sends probe requests to unreachable brokers, so that a broker that responds again is used
sooner.

A probe requests the maximum offset of queue 0 of one of the broker's topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from typing import Final

from rmq_protocol.headers import GetMaxOffsetRequestHeader, request_of

from ... import machine
from ..._text import printable
from ...client import ClientInstance
from ...errors import RocketMQError
from .fault_table import LatencyTable

logger = logging.getLogger("rmq_async.producer")

INTERVAL: Final = 2.0
"""Seconds from the end of the probes of all unreachable brokers to the next ones (Java's ``detectInterval``)."""
TIMEOUT: Final = 0.2
"""Seconds for a probe, including connecting (Java's ``detectTimeout``)."""


class BrokerProbe:
    """The task that probes brokers for one producer.

    Args:
        topic_on: Returns the name on the wire of a topic that a broker has, or None.
    """

    def __init__(self, instance: ClientInstance, faults: LatencyTable, topic_on: Callable[[str], str | None]) -> None:
        self._instance = instance
        self._faults = faults
        self._topic_on = topic_on
        self._task = asyncio.get_running_loop().create_task(self._run(), name="rmq_async detector", context=Context())

    def cancel(self) -> None:
        self._task.cancel()

    async def ended(self) -> None:
        """Wait until the task has ended."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            silent = self._faults.silent()
            if silent:
                async with asyncio.TaskGroup() as group:
                    for broker in silent:
                        group.create_task(self._probe(broker))

    async def _probe(self, broker: str) -> None:
        topic = self._topic_on(broker)
        address = self._instance.routes.address_of(broker)
        if topic is None or address is None:
            return
        command = request_of(GetMaxOffsetRequestHeader(topic=topic, queueId=0, bname=broker))
        deadline, pool = machine.monotonic() + TIMEOUT, self._instance.pool
        try:
            connection = pool.get(address) or await pool.connect(address, TIMEOUT)
            response = await connection.request(command, max(deadline - machine.monotonic(), 0.0))
        except RocketMQError as error:
            logger.debug("broker %s does not respond yet: %s", printable(broker), printable(error, 1000))
        except Exception as error:  # noqa: BLE001 - must not end the probes of the other brokers
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"probe of broker {printable(broker)} failed", "exception": error}
            )
        else:
            if response.code:
                logger.debug("broker %s responds, but with an error: code %d", printable(broker), response.code)
                return
            logger.info("broker %s responds again", printable(broker))
            self._faults.proved(broker)
