"""For all tests: ``pytester``, with which the pytest plugin's own tests make projects to run; the look-out for secrets; and which
tests may run beside which.

A session in which any log record of the client, at any level, shows a secret that a test signs with fails at its end.

With pytest-xdist (``tox`` runs ``-n 4``) the tests of one of the ``chains`` run in one process, one after the other: tests that
share servers of Java, tests whose servers fail, tests with servers of their own, and tests that share a Spark session. These four
wait for half of their time, and begin first; who is done with one takes of the rest, a file at a time.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

from .support import canaries, compiling, held_ports
from .support.chains import REAL_SERVERS, SPARK_CHAIN, chain_of

pytest_plugins = ["pytester"]

logging.setLoggerClass(canaries.CanaryLogger)
held_ports.install()
sys.dont_write_bytecode = False  # else each subprocess of a test compiles all it imports: 20 s of CPU instead of 6
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
settings.register_profile("suite", deadline=None)  # of 200 ms for an example, which a busy machine exceeds
settings.load_profile("suite")

SECRET_SHOWN = 9
"""Exit code of a session that logged a secret: pytest itself has none above 5."""
LONG = ("tests/testing/simulation/test_scenarios.py", "tests/testing/simulation/test_hashes.py")
"""Files that take half a minute of a processor each: they begin as soon as a process is free, else all wait for them in the end."""
LAST = ("tests/protocol/",)
"""Many short ones that fill the time left. None looks for sockets left behind: Spark's gateway to Java opens some at any time."""

_seconds: Counter[str] = Counter()
"""Seconds that the tests of each group took, and the processor's, those of ended child processes included."""
_tallies: dict[str, str] = {}
"""What became of the golden vectors in other processes."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Sends each chain, and each file that belongs to none, to one process."""
    from xdist.scheduler import LoadScopeScheduling

    class ByChain(LoadScopeScheduling):  # type: ignore[misc]
        """Who has run Spark, whose gateway keeps sockets and threads, runs no tests that look for those left behind."""

        def _split_scope(self, nodeid: str) -> str:
            return chain_of(nodeid) or nodeid.partition("::")[0]

        def _assign_work_unit(self, node: Any) -> None:
            mine = self.assigned_work.setdefault(node, {})
            scope = next(iter(self.workqueue))
            others = [each for each in self.nodes if each is not node and not each.shutting_down]
            if SPARK_CHAIN in mine and others:
                scope = next(reversed(self.workqueue))
                if not scope.startswith(LAST):
                    return
            mine[scope] = self.workqueue.pop(scope)
            places = self.registered_collections[node]
            node.send_runtest_some([places.index(nodeid) for nodeid, completed in mine[scope].items() if not completed])

    config.option.loadscopereorder = False  # in the order in which they come, not by the number of their tests
    return ByChain(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """A shell without job control starts what it puts in the background with SIGINT ignored, and what ignores a signal has its
    children ignore it. What has a handler does not: here one that ignores it, too.

    The collection makes few cycles and many objects, which each run of the garbage collector looks at: it is off meanwhile."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: None)
    gc.disable()
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        compiling.compile_share(config, int(worker["workerid"].removeprefix("gw")), worker["workercount"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    alone = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) == 1

    def turn(item: pytest.Item) -> int:
        chain = chain_of(item.nodeid)
        if chain is None:
            return 1 if item.nodeid.startswith(LONG) else 4 if item.nodeid.startswith(LAST) else 2
        return 3 if chain == SPARK_CHAIN and alone else 0

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """Leaves the collected tests, 330,000 objects, out of garbage collections: each simulation and each test of leaks makes
    some, and one took 0.27 s of the processor. What is rubbish among them is left out too."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Counts the time of each test for its group, and frees the ports of its servers."""
    group = _group_of(item.nodeid)
    began, cpu = time.monotonic(), sum(os.times()[:4])
    try:
        return (yield)
    finally:
        held_ports.release_all()
        _seconds[f"{group}, s"] += time.monotonic() - began
        _seconds[f"{group}, CPU s"] += sum(os.times()[:4]) - cpu


def pytest_runtest_call(item: pytest.Item) -> None:
    """Fails a coroutine marked ``virtual_time`` in a folder that gives it another loop: it would wait in real time."""
    if item.get_closest_marker("virtual_time") is not None and inspect.iscoroutinefunction(getattr(item, "function", None)):
        from .support import virtual_time

        where = "its folder's conftest.py must import pytest_asyncio_loop_factories of tests/support/loops.py"
        assert virtual_time.open_loops, f"{item.nodeid} does not run under virtual time: {where}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fails a test that leaves the clock of its loop to the tests after it."""
    from .support import virtual_time  # it imports the library, whose loggers get the class that is set above

    try:
        return (yield)
    finally:
        left = [*reversed(virtual_time.open_loops)]
        for loop in left:
            loop.close()
        virtual_time.give_clocks_back()
        assert not left, f"{item.nodeid} left a loop of virtual time open; it is closed now"


def _group_of(nodeid: str) -> str:
    if nodeid.startswith(REAL_SERVERS):
        return f"real servers: {chain_of(nodeid)}"
    return "/".join(nodeid.partition("::")[0].split("/")[:2])


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["canaries"] = canaries.found
        output["seconds"] = dict(_seconds)
        vectors = sys.modules.get("vectors")
        output["tallies"] = {name: str(tally) for name, tally in vectors.TALLIES.items()} if vectors is not None else {}
    if canaries.found:
        session.exitstatus = SECRET_SHOWN


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended."""
    output = getattr(node, "workeroutput", {})
    canaries.found += output.get("canaries", [])
    _seconds.update(output.get("seconds", {}))
    _tallies.update(output.get("tallies", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _tallies:
        terminalreporter.section("golden vectors")
    for name, tally in _tallies.items():
        terminalreporter.line(f"{name}: {tally}")
    if len(_seconds) > 2:
        terminalreporter.section("time by group of tests")
    for name, seconds in sorted(_seconds.items(), key=lambda each: -each[1]) if len(_seconds) > 2 else ():
        terminalreporter.line(f"{seconds:8.0f}  {name}")
    for where in canaries.found:
        terminalreporter.write_line(f"A SECRET IN THE LOG: {where}", red=True)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Threads are refused, as at the limit of processes of a container, while the only element is True."""
    start, refused = threading.Thread.start, [False]

    def start_or_not(thread: threading.Thread) -> None:
        if refused[0]:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    return refused


@pytest.fixture
def wide_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """New connections take any number of sends at once: their windows do not begin small."""
    monkeypatch.setattr("rmq_async.transport.send_window.FIRST_SIZE", 1 << 20)
