"""The watchdog of simulations: what it leaves of itself in the interpreter."""

from __future__ import annotations

import subprocess
import sys

STOPPED = """
import sys
from rmq_async.testing.simulation.errors import Frozen
from rmq_async.testing.simulation.watchdog import Watchdog

with Watchdog(0.1) as watchdog:
    try:
        while True:
            pass
    except Frozen:
        pass
assert "while True" in watchdog.stack or "<string>" in watchdog.stack
sys.setprofile(lambda *event: None)
(lambda: None)()
sys.setprofile(None)
print("profiled")
"""


def test_watchdog_that_stopped_a_callback_leaves_calls_that_can_be_profiled() -> None:
    ended = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=300)
    assert ended.stdout == "profiled\n", ended.stderr
