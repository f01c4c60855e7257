"""Ends a PostgreSQL server whose owner did not: ``python -I -S postgres_guard.py DIRECTORY``, with one end of a pipe as input.

The pipe ends with the owner, however that ends. A server that was stopped in order has removed its file of processes by then.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

sys.stdin.buffer.read()
running = Path(sys.argv[1]) / "data" / "postmaster.pid"
with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    number = int(running.read_text().split(maxsplit=1)[0])
    os.kill(number, signal.SIGQUIT)  # at once, without writing anything more
    for _ in range(100):
        os.kill(number, 0)
        time.sleep(0.05)
shutil.rmtree(sys.argv[1], ignore_errors=True)
