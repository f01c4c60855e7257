"""Carries out the decision about a message: settles it, gives it back to the broker, or makes it a dead letter."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rmq_protocol.constants import ResponseCode
from rmq_protocol.message import MessageExt

from .._backoff import Backoff
from .._text import printable
from ..client import ClientInstance, send_back, send_dead_letter
from ..errors import BrokerError, ConnectionLostError, RequestTimeoutError, RocketMQError
from .decision import Decision
from .group_limit import GroupLimits
from .held_queue import HeldQueue, Waiting
from .outcome import Outcome

__all__ = ["Outcomes"]

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0


class Outcomes:
    """Carries out decisions about messages.

    ``group``: on the wire. ``retried``, ``dead_lettered``: numbers of messages that brokers have accepted for another attempt,
    or as dead letters; ``retried`` includes attempts that this member repeats itself. ``unsure``: number of requests without an
    answer, whose messages may be delivered twice. ``given_up``: words of the log for a message after its last attempt.
    """

    given_up = "dead-lettered"

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self.retried = 0
        self.dead_lettered = 0
        self.unsure = 0
        self._limits = GroupLimits(instance, group)
        self._refused: dict[object, str] = {}
        """The last error of each message that is not given back yet."""

    @property
    def refused(self) -> str | None:
        """Returns the last error of a message that is not given back yet; None without one."""
        return next(reversed([*self._refused.values()]), None)

    def done(self, item: Waiting) -> None:
        """Settles a message that was handled, or that its broker has accepted back."""
        held = item.held
        if item in held.running:  # else the queue was moved, and the offset is another message's
            held.progress.settle(item.message.queue_offset)

    async def settle(self, topic: str, item: Waiting, decision: Decision) -> Outcome:
        """Carries out a decision for a message whose handler has failed, and returns its outcome; ABANDONED if its queue leaves
        this member before the broker has accepted the message."""
        outcome = await self.give_back(item.held, topic, item.message, decision)
        if outcome is not Outcome.ABANDONED:
            self.done(item)
        return outcome

    async def give_back(self, held: HeldQueue, topic: str, message: MessageExt, decision: Decision) -> Outcome:
        """Gives a message back, and repeats the request until the broker confirms it; returns ABANDONED if the queue is no
        longer this member's by then.

        ``topic``: the one that was subscribed to. A message that the broker does not store any more is sent as a dead letter:
        nothing else could keep it.
        """
        request = object()
        try:
            return await self._give_back(request, held, topic, message, decision)
        finally:
            self._refused.pop(request, None)

    async def _give_back(
        self, request: object, held: HeldQueue, topic: str, message: MessageExt, decision: Decision
    ) -> Outcome:
        """Gives a message back. ``request``: the key of this request among those in flight."""
        instance, wire_topic = self._instance, self._instance.names.wire(topic)
        is_last = await self._is_last(wire_topic, message, decision)
        pauses, stored = Backoff(FIRST_PAUSE, LONGEST_PAUSE), True
        while held.is_owned:
            try:
                if stored:
                    await send_back(
                        instance, self._group, wire_topic, message, level=decision.level, max_times=decision.max_times
                    )
                else:
                    await send_dead_letter(instance, self._group, wire_topic, message)
            except RocketMQError as error:
                text = self._refused[request] = printable(error, 500)
                if isinstance(error, RequestTimeoutError | ConnectionLostError) and error.maybe_stored:
                    self.unsure += 1
                if stored and _is_gone(error):
                    stored = False
                    logger.error(  # noqa: TRY400 - the traceback says nothing
                        "message %s is no longer stored, a copy is dead-lettered; let brokers keep messages for longer "
                        "(fileReservedTime): %s",
                        message.msg_id,
                        text,
                    )
                    continue
                pause = pauses.next()
                logger.warning(
                    "message %s was not taken back by its broker; trying again in %.1f s: %s", message.msg_id, pause, text
                )
                await asyncio.sleep(pause)
            else:
                if stored and decision.outcome is Outcome.RETRIED and not is_last:
                    self.retried += 1
                    return Outcome.RETRIED
                self.dead_lettered += 1
                return Outcome.DEAD_LETTERED
        return Outcome.ABANDONED

    async def _is_last(self, topic: str, message: MessageExt, decision: Decision) -> bool:
        """Returns whether the broker, because of the group's ``retryMaxTimes``, dead-letters a message that is given back for
        another attempt. ``topic``: on the wire."""
        if decision.outcome is not Outcome.RETRIED or decision.max_times is not None:
            return False
        limit = await self._limits.of(message.queue.broker_name, topic)
        return limit is not None and message.reconsume_times >= limit


def _is_gone(error: RocketMQError) -> bool:
    """Returns whether the broker does not store the message any more, by the remark of
    ``AbstractSendMessageProcessor.consumerSendMsgBack``: a broker also answers with code 1 while it cannot write."""
    remark = error.remark or "" if isinstance(error, BrokerError) and error.code == ResponseCode.SYSTEM_ERROR else ""
    return "look message by offset failed" in remark
