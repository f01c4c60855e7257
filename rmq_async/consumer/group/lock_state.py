"""The lock of one queue, as one client knows it."""

#             assume              grant            doubt
#     FREE ------------> ASSUMED --------> HELD <----------> DOUBTED
#       |                                   ^      confirm
#       +-------------- grant --------------+
#
#     HELD, DOUBTED:   refuse, end ---------------> FREE, lost
#     ASSUMED:         refuse after LOCK_LIFE ----> FREE, lost
#     all of them:     release -------------------> FREE
#
# Beside the state: ``asked_at`` while a request is not answered, since the broker may then have a lock of this client;
# ``owed_since`` while an unlock is not confirmed, since the lock may keep other members waiting; ``lost`` until it is reported.

from __future__ import annotations

from enum import Enum
from typing import Final

LOCK_LIFE: Final = 60.0
"""Seconds for which a broker keeps a lock that is not renewed."""
BELIEVED: Final = 55.0
"""Seconds for which this client relies on a lock, from the time at which it sent the request that obtained the lock."""


class Hold(Enum):
    """What a client has of a queue."""

    FREE = "free"
    ASSUMED = "assumed"
    """Taken without its lock."""
    HELD = "held"
    DOUBTED = "doubted"
    """Held, and another process in place of its broker may not have the lock."""


class LockState:
    """The state of one queue's lock, and its transitions; all times are monotonic."""

    __slots__ = ("_lost", "asked_at", "hold", "owed_since", "taken_at")

    def __init__(self) -> None:
        self.hold = Hold.FREE
        self.taken_at = 0.0
        """Time at which the queue was assumed, or its last request that obtained or renewed the lock was sent."""
        self.asked_at: float | None = None
        """Time of the last request, None once it is answered."""
        self.owed_since: float | None = None
        """Time of the first unlock that is not confirmed."""
        self._lost = False

    @property
    def is_taken(self) -> bool:
        """Whether the queue is assumed or held."""
        return self.hold is not Hold.FREE

    @property
    def is_held(self) -> bool:
        """Whether this client has the lock, in doubt or not."""
        return self.hold in (Hold.HELD, Hold.DOUBTED)

    @property
    def is_blank(self) -> bool:
        """Whether nothing is known of the queue."""
        return self.hold is Hold.FREE and self.asked_at is None and self.owed_since is None and not self._lost

    def owns(self, now: float) -> bool:
        """Return whether the client may write offsets of the queue: it is assumed, or locked and renewed in time."""
        return now - self.taken_at < BELIEVED if self.is_held else self.hold is Hold.ASSUMED

    # -- taking

    def assume(self, now: float) -> None:
        """Take the queue without its lock, unless it is held."""
        if not self.is_held:
            self.hold, self.taken_at = Hold.ASSUMED, now

    def ask(self, now: float, *, to_lock: bool) -> None:
        """Note a request for the lock or its unlock."""
        self.asked_at = now
        if to_lock:
            self.owed_since = None

    def grant(self, sent: float) -> bool:
        """Note that the broker has granted or renewed the lock at the request sent then.

        Returns:
            False if the queue was unlocked since the request began: the unlock follows.
        """
        if self.owed_since is not None:
            return False
        self.hold, self.taken_at, self.asked_at = Hold.DOUBTED if self.hold is Hold.DOUBTED else Hold.HELD, sent, None
        return True

    def refuse(self, sent: float) -> None:
        """Note that the broker has refused the lock: another client has it."""
        self.asked_at = None
        if self.is_held or (self.hold is Hold.ASSUMED and sent - self.taken_at >= LOCK_LIFE):
            self.hold, self._lost = Hold.FREE, True

    def renew(self, began: float) -> None:
        """Count the lock as renewed then, if it is held: its broker has no master that could grant it to others."""
        if self.is_held:
            self.taken_at = began

    def doubt(self) -> None:
        """Note that another process may be in place of the broker."""
        if self.hold is Hold.HELD:
            self.hold = Hold.DOUBTED

    def confirm(self) -> None:
        """Note that the process in place of the broker has answered a request for the lock."""
        if self.hold is Hold.DOUBTED:
            self.hold = Hold.HELD

    # -- losing

    def end(self, now: float) -> None:
        """Lose a lock that was not renewed in time."""
        if self.is_held and now - self.taken_at >= BELIEVED:
            self.hold, self._lost = Hold.FREE, True

    def take_lost(self) -> bool:
        """Return whether the lock was lost since the last call."""
        lost, self._lost = self._lost, False
        return lost

    # -- giving back

    def release(self, now: float) -> bool:
        """Give the queue back; return whether its broker may have the lock of this client, which then owes it an unlock."""
        may_have = self.is_held or (self.asked_at is not None and now - self.asked_at < LOCK_LIFE)
        self.hold, self._lost = Hold.FREE, False
        if may_have and self.owed_since is None:
            self.owed_since = now
        return may_have

    def unlock(self, now: float) -> None:
        """Note that a request to unlock the queue is sent; a queue that was assumed meanwhile stays so."""
        self.ask(now, to_lock=False)
        if self.is_held:
            self.hold = Hold.FREE
        if self.owed_since is None:
            self.owed_since = now

    def unlocked(self) -> None:
        """Note that the broker has confirmed the unlock."""
        self.asked_at = self.owed_since = None

    def expire(self, now: float) -> None:
        """Forget what an unanswered request may have left at the broker, once its life is over."""
        if self.asked_at is not None and now - self.asked_at >= LOCK_LIFE:
            self.asked_at = None

    def owes(self, now: float) -> bool:
        """Return whether to repeat the unlock: not after the lock's time is over, and not after the lock was granted again."""
        if self.owed_since is not None and (self.is_held or now - self.owed_since >= LOCK_LIFE):
            self.owed_since = None
        return self.owed_since is not None
