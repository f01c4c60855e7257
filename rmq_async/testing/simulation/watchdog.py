"""Detects callbacks that do not end, and virtual time that does not advance. A thread watches two counters, and raises an error
in the thread of the simulation when one of them does not change.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import traceback
from contextlib import suppress
from time import process_time
from types import TracebackType
from typing import Final, Self

from .errors import Frozen

LIMIT: Final = 5.0
"""Maximum number of real seconds of one callback."""
STANDING: Final = 10.0
"""Maximum number of CPU seconds at one virtual time. Thousands of tasks may run at the same virtual time."""
LOOKS: Final = 10
"""Number of times that the counters are read within the limit. The watchdog counts reads and not seconds, so that a process that
the operating system has suspended does not seem frozen."""

_start_thread = threading.Thread.start  # a simulation refuses Thread.start to other code


class Watchdog:
    """Watches the thread that enters it.

    If ``beats`` does not change for ``limit`` seconds, or ``moves`` for ``STANDING`` CPU seconds, the watchdog stores the stack
    of the thread in ``stack`` and raises Frozen in that thread.

    Attributes:
        beats: A number that changes with each callback.
        moves: A number that changes each time the virtual time advances.
    """

    def __init__(self, limit: float = LIMIT) -> None:
        self.beats = 0
        self.moves = 0
        self.limit = limit
        self.why = f"a callback ran for more than {limit:g} real seconds"
        self.stack = ""
        """The stack of the callback that was stopped. Empty if no callback was stopped."""
        self._over = threading.Event()
        self._watched = 0
        self._thread = threading.Thread(target=self._watch, name="rmq_async simulation watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._watched = threading.get_ident()
        _start_thread(self._thread)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._over.set()
        while self._thread.is_alive():
            with suppress(Frozen):
                self._thread.join()
        if self.stack:
            self._take_pending()

    def _take_pending(self) -> None:
        """Raise a pending Frozen error now, and suppress it.

        ``PyThreadState_SetAsyncExc`` with NULL would cancel the error, but CPython 3.11 then leaves the interpreter's
        async-exception flag set. Every later function call checks that flag, and under ``sys.setprofile`` the evaluation loop
        hangs.
        """
        with suppress(Frozen):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._watched), ctypes.py_object(Frozen))
            for _ in range(1000):  # the error is raised at a backward jump
                pass

    def _watch(self) -> None:
        seen, looks = self.beats, 0
        moved, began = self.moves, process_time()
        while not self._over.wait(self.limit / LOOKS):
            if self.moves != moved:
                moved, began = self.moves, process_time()
            looks = looks + 1 if self.beats == seen else 0
            seen = self.beats
            if looks < LOOKS and process_time() - began < STANDING:
                continue
            frame = sys._current_frames().get(self._watched)
            if not self.stack:
                if looks < LOOKS:
                    self.why = f"callbacks used more than {STANDING:g} s of CPU time at one virtual time"
                self.stack = "".join(traceback.format_stack(frame))
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._watched), ctypes.py_object(Frozen))
            looks, began = 0, process_time()  # raise it again if the callback caught it
