"""Outcomes of messages in broadcast, where no broker redelivers: this member handles a failed message again, and gives it up
after the last attempt."""

from __future__ import annotations

from rmq_protocol.message import MessageExt

from ..decision import Decision
from ..held_queue import HeldQueue, Waiting
from ..outcome import Outcome
from ..outcomes import Outcomes

__all__ = ["LocalOutcomes"]


class LocalOutcomes(Outcomes):
    """Carries decisions out in broadcast, where no broker redelivers messages.

    ``dead_lettered``: number of messages that were given up; only the log names them.
    """

    given_up = "given up, since broadcast has no dead letters"

    async def settle(self, topic: str, item: Waiting, decision: Decision) -> Outcome:
        self.dead_lettered += 1
        self.done(item)
        return Outcome.DEAD_LETTERED

    async def give_back(self, held: HeldQueue, topic: str, message: MessageExt, decision: Decision) -> Outcome:
        """Returns ABANDONED: the position stays before the message."""
        return Outcome.ABANDONED
