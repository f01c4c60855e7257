"""Carries out the decisions about messages whose handlers have failed: gives them back to brokers, or sends copies of them.

``Refusal`` tells what a failed request means for the message.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Final

from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.message import MessageExt

from ... import errors, machine
from ..._functions import error_text
from ..._text import printable
from ...broker_answers import is_unreplicated
from ...client import ClientInstance, broker_of_message, brokers_of, is_silent, retry_brokers, send_back, send_copy
from ..group import GroupLimits
from ..held_queue import HeldQueue, Waiting
from ..outcome import Outcome
from ..subscription import Subscription
from .decision import DEAD, IN_PLACE_LIMIT, Decision
from .give_backs import CircuitBreaker, GiveBack, GiveBacks, Report

logger = logging.getLogger(__name__)

_GONE: Final = "look message by offset failed"
"""Part of the remark in the response to 36 if the message is no longer stored
(``AbstractSendMessageProcessor.consumerSendMsgBack``)."""
PATIENCE: Final = 2
"""Number of attempts at a broker that is busy, or whose connection was lost, before other brokers are tried."""


class Refusal(Enum):
    """The meaning of a failed request to give a message back.

    Attributes:
        STORED: The broker has stored the copy, but has not flushed or replicated it in time. As for a send, this counts as stored.
        UNSURE: The broker may have stored the copy, but did not confirm it in time.
        CUT: The connection was lost. This says little about the broker; it may have stored the copy if the request was written.
        BUSY: The broker will accept messages again soon.
        UNABLE: The broker will not accept any message for some time, but another broker may.
        FORBIDDEN: This client may not give back messages of the group, at any broker.
        ILLEGAL: This message cannot be stored again, for example because its properties have become too long.
        GONE: The broker no longer stores the message.
    """

    STORED = "stored"
    UNSURE = "unsure"
    CUT = "cut"
    BUSY = "busy"
    UNABLE = "unable"
    FORBIDDEN = "forbidden"
    ILLEGAL = "illegal"
    GONE = "gone"


_STATUS: Final = {
    "FLUSH_DISK_TIMEOUT": Refusal.STORED,
    "FLUSH_SLAVE_TIMEOUT": Refusal.STORED,
    "SLAVE_NOT_AVAILABLE": Refusal.STORED,
    "IN_SYNC_REPLICAS_NOT_ENOUGH": Refusal.UNSURE,
    "putMessageResult is null": Refusal.UNSURE,
    "OS_PAGE_CACHE_BUSY": Refusal.BUSY,
    "MESSAGE_ILLEGAL": Refusal.ILLEGAL,
    "PROPERTIES_SIZE_EXCEEDED": Refusal.ILLEGAL,
}
"""Remarks in responses to 36 with code 1, which are names of PutMessageStatus, and their meanings. Any other status means UNABLE,
for example SERVICE_NOT_AVAILABLE (a full disk) and CREATE_MAPPED_FILE_FAILED."""


def refusal_of(error: errors.RocketMQError) -> Refusal:
    """Return the meaning of the error of a request."""
    if isinstance(error, errors.AuthenticationError | errors.PermissionDeniedError):
        return Refusal.FORBIDDEN
    if isinstance(error, errors.SystemBusyError | errors.FlowControlError):
        return Refusal.BUSY
    if isinstance(error, errors.MessageIllegalError):
        return Refusal.ILLEGAL
    if isinstance(error, errors.BrokerError):
        remark = error.remark or ""
        if error.code != 1:
            return Refusal.UNABLE
        if _GONE in remark:
            return Refusal.GONE
        if is_unreplicated(error.code, remark):
            return Refusal.UNSURE
        return _STATUS.get(remark, Refusal.UNABLE)
    if isinstance(error, errors.ConnectionLostError):
        return Refusal.CUT
    if isinstance(error, errors.RequestTimeoutError):
        return Refusal.UNSURE if error.maybe_stored else Refusal.UNABLE
    return Refusal.UNSURE if isinstance(error, RemoteProtocolError) else Refusal.UNABLE


_PASSING: Final = (Refusal.BUSY, Refusal.CUT)
"""Refusals that are expected to end by themselves."""
_ELSEWHERE: Final = (*_PASSING, Refusal.UNSURE, Refusal.UNABLE)
"""Refusals after which another broker may store a copy."""


class Outcomes:
    """Carries out decisions about messages that are not done.

    Args:
        group: Name of the group on the wire.
        is_locked: Whether members hold locks under the group's own name. Brokers from version 5.1.4 on then dead-letter every
            copy, so copies are sent only as dead letters.

    Attributes:
        copies_only: Whether to send copies even to a message's own broker. From a message of a lite topic, a broker would make a
            dead letter that is also in the lite topic.
        retried: Number of messages that brokers have accepted for another attempt, plus the attempts that this member repeats
            itself.
        dead_lettered: Number of messages that brokers have accepted as dead letters.
        unsure: Number of requests without a response, whose messages may be delivered twice.
        given_up: The words with which the log describes a message after its last attempt.
        breakers: Circuit breakers by broker name, for messages that the broker itself stores.
        copy_breakers: Circuit breakers by broker name, for copies of messages of other brokers.
        stored: Returns whether a message is still stored at its offset; raises the errors of the requests.
    """

    given_up = "dead-lettered"

    def __init__(self, instance: ClientInstance, group: str, *, is_locked: bool = False) -> None:
        self._instance = instance
        self._group = group
        self._is_locked = is_locked
        self.copies_only = False
        self.retried = 0
        self.dead_lettered = 0
        self.unsure = 0
        self.breakers: dict[str, CircuitBreaker] = {}
        self.copy_breakers: dict[str, CircuitBreaker] = {}
        self.limits = GroupLimits(instance, group)
        self.give_backs: GiveBacks
        self.stored: Callable[[GiveBack], Awaitable[bool]] = _stored

    def settle(
        self, subscription: Subscription, item: Waiting, decision: Decision, cause: BaseException, report: Report
    ) -> None:
        """Begin to carry out a decision about a message whose handler has failed with ``cause``.

        Args:
            report: Called with the outcome, before this method returns or later. The outcome is ABANDONED if the queue leaves this
                member before a broker has accepted the message.
        """
        topic = self._instance.names.wire(subscription.topic)
        self.give_backs.add(GiveBack(item.held, topic, item.message, decision, cause, report, item, subscription))

    def give_back(self, held: HeldQueue, topic: str, message: MessageExt, cause: str) -> None:
        """Begin to give back a message that this member does not handle.

        Args:
            topic: The subscribed topic, with the user's name.
            cause: The reason, which is logged.
        """
        wire_topic = self._instance.names.wire(topic)
        self.give_backs.add(GiveBack(held, wire_topic, message, Decision(Outcome.RETRIED), cause))

    def log_given_up(self, topic: str, message: MessageExt, attempt: int, by: str, reason: str) -> None:
        """Log that a message gets no further attempt after attempt number ``attempt``.

        Args:
            by: The handler that made the attempt, as words for the log; "" if it is not known.
            reason: The reason.
        """
        logger.error("%s: %s, attempt %d%s: %s", self.given_up, shown_message(topic, message), attempt, by, reason)

    def broker_of(self, back: GiveBack) -> str:
        return broker_of_message(self._instance, back.topic, back.message)

    def is_wanted(self, back: GiveBack) -> bool:
        return back.held.is_owned

    async def try_once(self, back: GiveBack) -> Outcome | None:
        """Try once to give a message back to the broker that stores it, unless that broker has refused messages lately. If that
        fails, try to store a copy at other brokers.

        Returns:
            The outcome; None if no broker has accepted the message or a copy.
        """
        origin = self.broker_of(back)
        if self._may_ask(origin, self.breakers):
            refusal = await self._ask(origin, back)
            if isinstance(refusal, Outcome):
                return refusal
            if refusal is Refusal.GONE:
                back.is_gone = True
                refusal = await self._ask(origin, back)
                if isinstance(refusal, Outcome):
                    return refusal
            if refusal not in _ELSEWHERE or (refusal in _PASSING and back.rounds < PATIENCE):
                return None
        elif back.decision.outcome is Outcome.RETRIED:
            await self._look_at_limit(origin, back)
        for broker in await self._others(origin, back):
            if not self.is_wanted(back):
                break
            if isinstance(outcome := await self._ask(broker, back, copy=True), Outcome):
                return outcome
        return None

    async def _others(self, origin: str, back: GiveBack) -> list[str]:
        """Return the brokers that may store a copy, in the order in which to try them."""
        if self._is_locked and not self._is_dead(back):
            return []
        names = await retry_brokers(self._instance, self._group, self._instance.config.request_timeout)
        found = [name for name in names if name != origin and self._may_ask(name, self.copy_breakers)]
        machine.random.shuffle(found)
        known, _ = brokers_of(self._instance)
        return sorted(found, key=lambda name: name in known and not known[name].reachable)

    async def _ask(self, broker: str, back: GiveBack, *, copy: bool = False) -> Outcome | Refusal:
        """Try to give a message back at one broker.

        Args:
            copy: Whether to send a copy. The message's own broker also gets a copy if it no longer has the message, or would count
                the attempts wrongly.
        """
        instance, group, decision = self._instance, self._group, back.decision
        breakers = self.copy_breakers if copy else self.breakers
        try:
            limit = await self._look_at_limit(broker, back)
            if not copy:
                copy = await self._needs_copy(broker, back)
            dead = self._is_dead(back)
            if copy:
                level = 0 if dead else back.level(machine.monotonic())
                await send_copy(instance, group, back.topic, back.message, broker=broker, level=level, max_times=limit)
            else:
                level = DEAD if back.is_recounted and dead else self._level_of(back)
                await send_back(instance, group, back.topic, back.message, level=level, max_times=decision.max_times)
        except errors.RocketMQError as error:
            refusal = refusal_of(error)
            if refusal is not Refusal.STORED:
                self._note(broker, back, refusal, error, breakers)
                return refusal
        if (breaker := breakers.get(broker)) is not None:
            breaker.succeeded()
        if dead:
            self.dead_lettered += 1
            if decision.outcome is Outcome.RETRIED:  # else it has been logged already
                self._log_last(back)
            return Outcome.DEAD_LETTERED
        self.retried += 1
        return Outcome.RETRIED

    def _level_of(self, back: GiveBack) -> int:
        return back.decision.level if back.here_at is None else back.level(machine.monotonic())

    async def _needs_copy(self, broker: str, back: GiveBack) -> bool:
        """Return whether to send a copy to the message's own broker.

        A broker finds the message by its offset in the commit log. If the store was replaced by an older copy, another message may
        be there.
        """
        if back.is_gone or self.copies_only:
            return True
        if not await self.stored(back):
            back.is_gone = self._is_locked
            return True
        if self._is_locked or not back.is_recounted or self._is_dead(back):
            return False
        return broker in await retry_brokers(self._instance, self._group, self._instance.config.request_timeout)

    async def _look_at_limit(self, broker: str, back: GiveBack) -> int:
        """Return the maximum number of attempts after the first one, from the decision or else from the group's ``retryMaxTimes``.
        Note whether the message has used them up and becomes a dead letter.
        """
        decision, limit = back.decision, back.decision.max_times
        if decision.outcome is not Outcome.RETRIED:
            return IN_PLACE_LIMIT if limit is None else limit
        if limit is None:
            topic = back.topic if broker == self.broker_of(back) else RETRY_TOPIC_PREFIX + self._group
            limit = await self.limits.of(broker, topic)
            back.is_last = limit is not None and back.message.reconsume_times >= limit
        return IN_PLACE_LIMIT if limit is None else limit

    def _is_dead(self, back: GiveBack) -> bool:
        return back.decision.outcome is Outcome.DEAD_LETTERED or back.is_last or back.is_gone

    def _log_last(self, back: GiveBack) -> None:
        """Log a message that was meant to have another attempt, but became a dead letter because of the group's limit or because it
        is no longer stored.
        """
        message, cause = back.message, back.cause
        attempt = message.reconsume_times + 1 if back.item is None else back.item.attempt
        by = "" if back.subscription is None else f", by handler {back.subscription.name}"
        topic = self._instance.names.shown(back.topic) if back.subscription is None else back.subscription.topic
        self.log_given_up(topic, message, attempt, by, cause if isinstance(cause, str) else error_text(cause))

    def _may_ask(self, broker: str, breakers: Mapping[str, CircuitBreaker]) -> bool:
        """Return whether to try a broker: it has not refused messages lately, and leaves no other requests unanswered."""
        breaker = breakers.get(broker)
        return (breaker is None or breaker.open_until <= machine.monotonic()) and not is_silent(self._instance, broker)

    def _note(
        self, broker: str, back: GiveBack, refusal: Refusal, error: errors.RocketMQError, breakers: dict[str, CircuitBreaker]
    ) -> None:
        """Note and log that a broker has not accepted a message, or a copy of it."""
        text, message = printable(error, 500), back.message
        if refusal is Refusal.UNSURE or (isinstance(error, errors.ConnectionLostError) and error.maybe_stored):
            self.unsure += 1
        if refusal is Refusal.GONE:
            logger.error(
                "message %s is no longer stored, so a copy is dead-lettered; let brokers keep messages for longer "
                "(fileReservedTime): %s",
                message.msg_id,
                text,
            )
            return
        if refusal is Refusal.ILLEGAL:
            if back.illegal is None:
                logger.warning("message %s cannot be given back: %s", message.msg_id, text)
            back.illegal = text
            return
        opens = refusal not in _PASSING or back.rounds >= PATIENCE
        pause = breakers.setdefault(broker, CircuitBreaker()).refused(text, machine.monotonic(), opens=opens)
        if pause is not None:
            logger.warning(
                "message %s was not accepted by broker %s, which is tried again in %.1f s: %s",
                message.msg_id,
                broker,
                pause,
                text,
            )


async def _stored(_: GiveBack) -> bool:
    """Return True. It is the default of ``stored``, which assumes that brokers still store the messages that were read."""
    return True


def shown_message(topic: str, message: MessageExt) -> str:
    return f"message {message.msg_id} of {topic} ({message.queue}, offset {message.queue_offset})"
