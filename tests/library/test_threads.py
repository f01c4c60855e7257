"""The library's own threads: a job begins in one of them, or it is refused and never runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from rmq_async._threads import NoThreadError, ThreadPool
from rmq_async.errors import ClientStateError

from ..support.waiting import until

pytestmark = pytest.mark.interpreters

NAME = "pool of a test"


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> None:
    assert not own_threads()


def own_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(NAME)]


async def test_refused_job_never_runs(refusing: list[bool]) -> None:
    refusing[0] = True
    ran: list[int] = []
    pool = ThreadPool(2, NAME)
    with pytest.raises(NoThreadError, match=r"\(can't start new thread\); raise the limit of threads"):
        pool.submit(ran.append, 1)
    assert pool.reserve() is None
    assert (pool.count, pool.refused) == (0, "can't start new thread")
    refusing[0] = False
    assert pool.submit(lambda: ran.append(2)).result(60) is None
    assert (ran, pool.count, pool.refused) == ([2], 1, None)
    pool.close()
    await until(lambda: not own_threads())


async def test_job_waits_for_a_thread_at_work_where_no_other_is_granted(refusing: list[bool]) -> None:
    go_on = threading.Event()
    pool = ThreadPool(2, NAME)
    first = pool.submit(go_on.wait, 5)
    refusing[0] = True
    second = pool.submit(os.getpid)
    assert not second.done()
    go_on.set()
    assert (first.result(60), second.result(60)) == (True, os.getpid())
    pool.close()
    await until(lambda: not own_threads())


async def test_reserved_thread_takes_no_other_job() -> None:
    pool = ThreadPool(1, NAME)
    thread = pool.reserve()
    assert thread is not None
    assert pool.reserve() is None
    assert pool.refused is None
    waiting = pool.submit(os.getpid)
    assert not waiting.done()
    assert thread.submit(os.getpid).result(60) == os.getpid()
    assert waiting.result(60) == os.getpid()
    again = pool.reserve()
    assert again is not None
    again.release()
    assert pool.submit(os.getpid).result(60) == os.getpid()
    pool.close()
    await until(lambda: not own_threads())


async def test_close_cancels_what_has_not_begun() -> None:
    go_on = threading.Event()
    pool = ThreadPool(1, NAME)
    first, second = pool.submit(go_on.wait, 5), pool.submit(os.getpid)
    await until(first.running)
    pool.close()
    pool.close()
    with pytest.raises(CancelledError):
        second.result(60)
    go_on.set()
    assert first.result(60)
    with pytest.raises(ClientStateError, match="ended"):
        pool.submit(os.getpid)
    assert pool.reserve() is None
    await until(lambda: not own_threads())


async def test_close_ends_a_reserved_thread() -> None:
    """A job for it would never end."""
    pool = ThreadPool(1, NAME)
    thread = pool.reserve()
    assert thread is not None
    pool.close()
    with pytest.raises(ClientStateError, match="ended"):
        thread.submit(os.getpid)
    await until(lambda: not own_threads())


async def test_dropped_pool_ends_its_threads() -> None:
    pool = ThreadPool(2, NAME)
    pool.submit(os.getpid).result(60)
    assert own_threads()
    del pool
    await until(lambda: not own_threads())


async def test_error_of_a_job_is_its_futures() -> None:
    pool = ThreadPool(1, NAME)
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(60)
    assert pool.submit(os.getpid).result(60) == os.getpid()
    pool.close()
    await until(lambda: not own_threads())


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize("where", ["program", "child of multiprocessing", "forked child"])
def test_exit_waits_for_jobs_that_are_awaited(where: str, is_awaited: bool, tmp_path: Path) -> None:
    """A forked child does not wait for a job of its parent."""
    # Real time: an interpreter that exits is a process of its own, and it must exit while the job sleeps.
    path = tmp_path / "program.py"
    expected = "ended\n" if is_awaited and where != "forked child" else ""
    path.write_text(f"""
import multiprocessing, os, sys, threading, time
from rmq_async._threads import ThreadPool

begun = threading.Event()

def job():
    begun.set()
    time.sleep({0.2 if expected else 600})
    print("ended", flush=True)

def main():
    global pool
    pool = ThreadPool(1, "pool", is_awaited={is_awaited})
    pool.submit(job)
    begun.wait()

if __name__ == "__main__":
    if {where!r} == "child of multiprocessing":
        child = multiprocessing.get_context("spawn").Process(target=main)
        child.start()
        child.join()
    else:
        main()
        if {where!r} == "forked child":
            if os.fork():
                os.wait()
                os._exit(0)
            sys.exit()
""")
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert (run.stdout, run.returncode) == (expected, 0), run.stderr
