"""Asks brokers that did not answer whether they are back, so that they need not wait until their time is over (``detector=True``).

The question is the cheapest one that a broker answers only when it works: the last offset of a topic's first queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from time import monotonic
from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import GetMaxOffsetRequestHeader, to_ext

from ..client.instance import ClientInstance
from ..client.text import printable
from ..errors import RocketMQError
from .faults import Faults

__all__ = ["Detector"]

logger = logging.getLogger("rmq_async.producer")

INTERVAL: Final = 2.0
"""Seconds between two rounds (``detectInterval``)."""
TIMEOUT: Final = 0.2
"""Seconds for connecting and answer (``detectTimeout``)."""


class Detector:
    """``topic_on``: a topic that a broker has queues of, as servers name it; None where there is none any more."""

    def __init__(self, instance: ClientInstance, faults: Faults, topic_on: Callable[[str], str | None]) -> None:
        self._instance = instance
        self._faults = faults
        self._topic_on = topic_on
        self._task = asyncio.get_running_loop().create_task(self._run(), name="rmq_async detector", context=Context())

    def cancel(self) -> None:
        self._task.cancel()

    async def ended(self) -> None:
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
        header = GetMaxOffsetRequestHeader(topic=topic, queueId=0, bname=broker)
        command = RemotingCommand(code=RequestCode.GET_MAX_OFFSET, ext_fields={**to_ext(header)})
        deadline, pool = monotonic() + TIMEOUT, self._instance.pool
        try:
            connection = pool.get(address) or await pool.connect(address, TIMEOUT)
            response = await connection.request(command, max(deadline - monotonic(), 0.0))
        except RocketMQError as error:
            logger.debug("broker %s does not answer yet: %s", printable(broker), printable(error, 1000))
        except Exception as error:  # noqa: BLE001 - the other brokers are asked all the same
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"asking broker {printable(broker)} failed", "exception": error}
            )
        else:
            if response.code:
                logger.debug("broker %s answers, and does not work yet: code %d", printable(broker), response.code)
                return
            logger.info("broker %s answers again", printable(broker))
            self._faults.proved(broker)
