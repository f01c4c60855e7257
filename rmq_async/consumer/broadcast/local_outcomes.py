"""Outcomes of messages that no broker takes back: handled again here, and given up after the last attempt."""

from __future__ import annotations

from rmq_protocol.message import MessageExt

from ..decision import Decision
from ..held_queue import HeldQueue, Waiting
from ..outcome import Outcome
from ..outcomes import Outcomes

__all__ = ["LocalOutcomes"]


class LocalOutcomes(Outcomes):
    """The part that carries decisions out where no broker takes messages back.

    ``dead_lettered``: messages that were given up, of which nothing is kept but their lines in the log.
    """

    given_up = "given up, since broadcast has no dead letters"

    async def settle(self, topic: str, item: Waiting, decision: Decision) -> Outcome:
        self.dead_lettered += 1
        self.done(item)
        return Outcome.DEAD_LETTERED

    async def give_back(self, held: HeldQueue, topic: str, message: MessageExt, decision: Decision) -> Outcome:
        """Returns ABANDONED: the position stays before the message."""
        return Outcome.ABANDONED
