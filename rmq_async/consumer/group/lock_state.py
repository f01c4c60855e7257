"""The state of one queue's lock, as one client knows it."""

#             assume              grant            doubt
#     FREE ------------> ASSUMED --------> HELD <----------> DOUBTED
#       |                                   ^      confirm
#       +-------------- grant --------------+
#
#     HELD, DOUBTED:   refuse, end ---------------> FREE, lost
#     ASSUMED:         refuse after LOCK_LIFE ----> FREE, lost
#     any state:       release -------------------> FREE
#
# In addition to the state, ``asked_at`` is set while a request has no response, because the broker may then have a lock of this
# client. ``owed_since`` is set while an unlock is not confirmed, because the lock may keep other members waiting. ``_lost`` is set
# until the loss is reported.

from __future__ import annotations

from enum import Enum
from typing import Final

LOCK_LIFE: Final = 60.0
"""Seconds for which a broker keeps a lock that is not renewed."""
BELIEVED: Final = 55.0
"""Seconds for which this client relies on a lock after it sent the request that obtained or renewed the lock."""


class Hold(Enum):
    """How a client holds a queue."""

    FREE = "free"
    ASSUMED = "assumed"
    """The queue was taken without its lock."""
    HELD = "held"
    DOUBTED = "doubted"
    """The lock is held, but another process, which does not have the lock, may have taken the place of the broker."""


class LockState:
    """The state of one queue's lock, and its transitions. All times are monotonic."""

    __slots__ = ("_lost", "asked_at", "hold", "owed_since", "taken_at")

    def __init__(self) -> None:
        self.hold = Hold.FREE
        self.taken_at = 0.0
        """Time at which the queue was assumed, or at which the last request that obtained or renewed the lock was sent."""
        self.asked_at: float | None = None
        """Time of the last request; None after the broker has responded."""
        self.owed_since: float | None = None
        """Time of the first unlock that is not confirmed; None if there is none."""
        self._lost = False

    @property
    def is_taken(self) -> bool:
        """Whether the queue was taken, with or without its lock."""
        return self.hold is not Hold.FREE

    @property
    def is_held(self) -> bool:
        """Whether this client has the lock, even if the lock is in doubt."""
        return self.hold in (Hold.HELD, Hold.DOUBTED)

    @property
    def is_blank(self) -> bool:
        """Whether the state holds no information, so that it can be removed."""
        return self.hold is Hold.FREE and self.asked_at is None and self.owed_since is None and not self._lost

    def owns(self, now: float) -> bool:
        """Return whether the client may write offsets of the queue: the queue is assumed, or its lock was renewed in time."""
        return now - self.taken_at < BELIEVED if self.is_held else self.hold is Hold.ASSUMED

    # -- taking

    def assume(self, now: float) -> None:
        """Take the queue without its lock. Do nothing if the lock is held."""
        if not self.is_held:
            self.hold, self.taken_at = Hold.ASSUMED, now

    def ask(self, now: float, *, to_lock: bool) -> None:
        """Note a request to lock or unlock the queue."""
        self.asked_at = now
        if to_lock:
            self.owed_since = None

    def grant(self, sent: float) -> bool:
        """Note that the broker has granted or renewed the lock.

        Args:
            sent: Time at which the request was sent.

        Returns:
            False if the queue has been unlocked since then, so that an unlock follows.
        """
        if self.owed_since is not None:
            return False
        self.hold, self.taken_at, self.asked_at = Hold.DOUBTED if self.hold is Hold.DOUBTED else Hold.HELD, sent, None
        return True

    def refuse(self, sent: float) -> None:
        """Note that the broker has refused the lock, because another client has it."""
        self.asked_at = None
        if self.is_held or (self.hold is Hold.ASSUMED and sent - self.taken_at >= LOCK_LIFE):
            self.hold, self._lost = Hold.FREE, True

    def renew(self, began: float) -> None:
        """Count a held lock as renewed at ``began``, because its broker has no master that could grant it to other clients."""
        if self.is_held:
            self.taken_at = began

    def doubt(self) -> None:
        """Note that another process may have taken the place of the broker."""
        if self.hold is Hold.HELD:
            self.hold = Hold.DOUBTED

    def confirm(self) -> None:
        """Note that the current process of the broker has responded to a request for the lock."""
        if self.hold is Hold.DOUBTED:
            self.hold = Hold.HELD

    # -- losing

    def end(self, now: float) -> None:
        """Mark the lock as lost if it was not renewed in time."""
        if self.is_held and now - self.taken_at >= BELIEVED:
            self.hold, self._lost = Hold.FREE, True

    def take_lost(self) -> bool:
        """Return whether the lock was lost since the last call."""
        lost, self._lost = self._lost, False
        return lost

    # -- giving back

    def release(self, now: float) -> bool:
        """Give back the queue. Return whether the broker may have a lock of this client; the client then owes the broker an
        unlock.
        """
        may_have = self.is_held or (self.asked_at is not None and now - self.asked_at < LOCK_LIFE)
        self.hold, self._lost = Hold.FREE, False
        if may_have and self.owed_since is None:
            self.owed_since = now
        return may_have

    def unlock(self, now: float) -> None:
        """Note that a request to unlock the queue is sent. A queue that was assumed meanwhile stays assumed."""
        self.ask(now, to_lock=False)
        if self.is_held:
            self.hold = Hold.FREE
        if self.owed_since is None:
            self.owed_since = now

    def unlocked(self) -> None:
        """Note that the broker has confirmed the unlock."""
        self.asked_at = self.owed_since = None

    def expire(self, now: float) -> None:
        """Forget a request without a response when a lock that it may have obtained has expired at the broker."""
        if self.asked_at is not None and now - self.asked_at >= LOCK_LIFE:
            self.asked_at = None

    def owes(self, now: float) -> bool:
        """Return whether to repeat the unlock. It is not repeated after the lock has expired or was granted again."""
        if self.owed_since is not None and (self.is_held or now - self.owed_since >= LOCK_LIFE):
            self.owed_since = None
        return self.owed_since is not None
