"""Kills the servers of a cluster whose owner process has ended for any reason (SIGKILL, SIGTERM, os._exit, a crash), and deletes
DIRECTORY.

Run it as ``python -I -S _guard.py OWNER_PID [DIRECTORY]`` with one end of a pipe from the owner as standard input, as the
leader of a new process group. All servers of the cluster join that group, so one signal reaches all servers, including a server
that the owner has just started. In an orderly stop, the owner kills the group, including the guard.

PR_SET_PDEATHSIG is no alternative, because only Linux supports it and because it fires when the *thread* that forked ends.
Servers that were started from a worker thread would then be killed. A guard costs one idle interpreter (8 MB) per cluster.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time


def main(owner: int, directory: str | None) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == owner:  # also check the parent, because a forked child of the owner may hold the pipe open
        readable, _, _ = select.select([0], [], [], 0.5)
        if readable and not os.read(0, 64):
            break
    group = os.getpgid(0)
    if os.fork():
        signal.pause()  # until the child kills the group
        return
    os.setsid()  # leave the group before it is killed
    os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while directory and os.path.exists(directory) and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
