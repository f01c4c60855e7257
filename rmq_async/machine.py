"""The resources that the library takes from the machine: clocks, random sources, the process id, and the name that its clients
share.

The library reads these attributes when it needs them (``machine.monotonic()``), so that a simulation can set them for each of its
processes.
"""

from __future__ import annotations

import os
import random as _random
import time as _time
from collections.abc import Callable
from concurrent.futures import Future
from random import Random, SystemRandom
from typing import ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


class Jobs(Protocol):
    """Runs jobs instead of threads.

    Attributes:
        refused: The error with which the machine refuses threads; None while it grants them.
    """

    @property
    def refused(self) -> str | None: ...

    def submit(self, fn: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]: ...


monotonic: Callable[[], float] = _time.monotonic
"""Seconds of a clock that is never set: deadlines and durations."""
time: Callable[[], float] = _time.time
"""Seconds since the epoch. This clock may be set."""
random: Random = cast("Random", _random)
"""The source of pauses, orders and choices: the generator that ``random.seed`` seeds."""
entropy: Random = SystemRandom()
"""The source of ids and names, which two processes must not draw twice."""
process_id: Callable[[], int] = os.getpid
executor: Jobs | None = None
"""Runs the library's jobs and plain handlers; None: threads of the library's own (``_threads``) run them."""
address = ""
"""The IP address of this machine that name servers see; empty: the system is asked for it."""
instance_name = ""
"""The default ``instance_name`` of the clients of this process; empty until one is drawn."""
