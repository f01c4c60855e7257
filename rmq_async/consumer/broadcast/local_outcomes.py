"""Outcomes of messages in broadcast, where no broker redelivers: this member handles a failed message again, and gives it up
after the last attempt."""

from __future__ import annotations

from rmq_protocol.message import MessageExt

from ..decision import Decision
from ..give_backs import GiveBack, Report
from ..held_queue import HeldQueue, Waiting
from ..outcome import Outcome
from ..outcomes import Outcomes
from ..subscription import Subscription

__all__ = ["LocalOutcomes"]


class LocalOutcomes(Outcomes):
    """Carries decisions out in broadcast, where no broker redelivers messages.

    ``dead_lettered``: number of messages that were given up; only the log names them.
    """

    given_up = "given up, since broadcast has no dead letters"

    def settle(
        self, subscription: Subscription, item: Waiting, decision: Decision, cause: BaseException, report: Report
    ) -> None:
        self.dead_lettered += 1
        back = GiveBack(item.held, subscription.topic, item.message, decision, cause, report, item)
        self.give_backs.end_now(back, Outcome.DEAD_LETTERED)

    def give_back(self, held: HeldQueue, topic: str, message: MessageExt, cause: str) -> None:
        """Does nothing: the position stays before the message."""
