"""The resources that the library uses from the machine: clocks, random sources, the process id, threads, and the instance name that
clients share.

The library reads these attributes each time that it needs them (``machine.monotonic()``), so a simulation can set them for each of
its simulated processes.
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
    """The type of ``executor``, an object that runs jobs in place of the library's threads.

    Attributes:
        refused: The error with which the machine refuses threads; None while it grants them.
    """

    @property
    def refused(self) -> str | None: ...

    def submit(self, fn: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]: ...


monotonic: Callable[[], float] = _time.monotonic
"""Returns the seconds of a clock that is never adjusted, for deadlines and durations."""
time: Callable[[], float] = _time.time
"""Returns the seconds since the epoch. This clock may be adjusted."""
random: Random = cast("Random", _random)
"""The random source for pauses, orders and choices. It is the generator of the ``random`` module, which ``random.seed`` seeds."""
entropy: Random = SystemRandom()
"""The random source for ids and names, which must differ between processes."""
process_id: Callable[[], int] = os.getpid
executor: Jobs | None = None
"""The object that runs the library's jobs and plain handlers. If it is None, the threads of the library (``_threads``) run them."""
address = ""
"""The IP address from which this machine connects to name servers. If it is empty, the system determines the address."""
instance_name = ""
"""The default ``instance_name`` of the clients of this process; empty until it is drawn at random."""
