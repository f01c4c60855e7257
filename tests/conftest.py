"""What every test here may rely on, however the run was started."""

from __future__ import annotations

import signal

# A shell that starts a run in the background has it, and all its children, ignore SIGINT; the tests interrupt some of theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
