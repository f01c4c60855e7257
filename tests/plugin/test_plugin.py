"""The pytest plugin in projects of their own, each run by a pytest of its own, with warnings as errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from rmq_async.testing import ThreadedRocketMQ

SETTINGS = """
[pytest]
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""

PLAIN = """
import asyncio
import pytest
import rmq_async
from rmq_async import Message, Producer

async def send(namesrv, body):
    async with Producer("shop", namesrv=namesrv) as producer:
        return (await producer.send(Message("T", body))).attempts

def test_plain(rocketmq):
    assert rmq_async.run(send(rocketmq.namesrv, b"one")) == 1
    rocketmq.fail_next(2, request=310)
    assert asyncio.run(send(rocketmq.namesrv, b"two")) == 2
    assert [message.body for message in rocketmq.messages("T")] == [b"one", b"two"]

def test_every_test_has_its_own(rocketmq):
    assert rocketmq.messages("T") == []
    assert rocketmq.brokers.keys() == {"broker-a"}

@pytest.mark.parametrize("rocketmq_options", [{"brokers": 3}])
def test_options_for_one_test(rocketmq):
    assert len(rocketmq.brokers) == 3

class TestOptionsForSome:
    @pytest.fixture
    def rocketmq_options(self):
        return {"brokers": 2}

    def test_options(self, rocketmq):
        assert len(rocketmq.brokers) == 2
"""

ASYNC = """
import asyncio
import pytest
from rmq_async import Message, Producer

@pytest.fixture
async def producer(rocketmq):
    async with Producer("shop", namesrv=rocketmq.namesrv) as producer:
        yield producer

@pytest.mark.asyncio
async def test_async(rocketmq, producer):
    rocketmq.stall()
    send = asyncio.create_task(producer.send(Message("T", b"one")))
    await asyncio.sleep(0.01)
    rocketmq.resume()
    assert (await send).attempts == 1
    assert len(rocketmq.messages("T")) == 1
    await rocketmq.stop()
    await rocketmq.start()
    await producer.send(Message("T", b"two"))
"""

CLUSTER = """
import pytest

def test_with_a_cluster(rocketmq_cluster):
    print(rocketmq_cluster.namesrv, [broker.name for broker in rocketmq_cluster.brokers])

def test_without(rocketmq):
    assert rocketmq.namesrv
"""


SIMULATED = """
import asyncio
import pytest
from rmq_async import Message, Producer

async def send(simulation):
    async with Producer("shop", namesrv=simulation.namesrv) as producer:
        await producer.send(Message("T", b"one"))
        await asyncio.sleep(3600)
    return simulation.seed

def test_passes(simulated_rocketmq):
    assert simulated_rocketmq(send, seed=7, faults=None, brokers=1) == 7

def test_repeats(simulated_rocketmq):
    print("seed of this run:", simulated_rocketmq(send, faults=None))

def test_asserts(simulated_rocketmq):
    assert simulated_rocketmq(send, faults=None) == "no seed"

def test_violates(simulated_rocketmq):
    async def main(simulation):
        await send(simulation)
        simulation.violation("sold twice")

    simulated_rocketmq(main, faults=None)

@pytest.mark.asyncio
async def test_async(simulated_rocketmq):
    simulated_rocketmq(send)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.delenv("RMQ_REQUIRE_CLUSTER", raising=False)
    monkeypatch.delenv("RMQ_SEED", raising=False)
    pytester.makefile(".ini", pytest=SETTINGS)
    return pytester


def test_the_plugin_is_registered() -> None:
    (entry,) = [entry for entry in entry_points(group="pytest11") if entry.name == "rocketmq"]
    assert entry.value == "pytest_rmq_async"


def test_plain_and_async_tests_use_the_embedded_broker(project: pytest.Pytester) -> None:
    project.makepyfile(test_plain=PLAIN, test_async=ASYNC.replace("@pytest.fixture", "@__import__('pytest_asyncio').fixture"))
    project.runpytest_subprocess().assert_outcomes(passed=5)


def test_pytest_asyncio_in_auto_mode_is_as_good(project: pytest.Pytester) -> None:
    project.makepyfile(test_async=ASYNC.replace("@pytest.mark.asyncio\n", ""))
    project.runpytest_subprocess("-o", "asyncio_mode=auto").assert_outcomes(passed=1)


def test_plain_tests_need_no_pytest_asyncio(project: pytest.Pytester) -> None:
    project.makefile(".ini", pytest="[pytest]\nfilterwarnings = error\n")
    project.makepyfile(test_plain=PLAIN)
    project.runpytest_subprocess("-p", "no:asyncio").assert_outcomes(passed=4)


def test_without_java_a_test_with_a_cluster_is_skipped_and_says_why(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    project.makepyfile(CLUSTER)
    result = project.runpytest_subprocess("-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["*real RocketMQ 5.5.0: no Java: neither JAVA_HOME nor PATH has a java; install Java 11 or newer"]
    )
    monkeypatch.setenv("RMQ_REQUIRE_CLUSTER", "1")
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*RMQ_REQUIRE_CLUSTER=1, but no Java: neither JAVA_HOME nor PATH has a java; install Java 11 or newer"]
    )


def test_a_cluster_of_others_is_used_where_the_environment_names_one(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyfile(CLUSTER)
    with ThreadedRocketMQ(brokers=2) as server:
        monkeypatch.setenv("NAMESRV_ADDR", server.namesrv)
        result = project.runpytest_subprocess("-s")
        result.assert_outcomes(passed=2)
        result.stdout.fnmatch_lines([f"*{server.namesrv} ?'broker-a', 'broker-b'?*"])


def test_a_simulated_test_that_fails_says_how_to_repeat_it(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project.makepyfile(test_simulated=SIMULATED)
    result = project.runpytest_subprocess("-k", "not async")
    result.assert_outcomes(passed=2, failed=2)
    (drawn,) = re.findall(r"^seed (\d+); to repeat it: RMQ_SEED=(\d+) pytest '(.*::test_violates)'$", result.stdout.str(), re.M)
    result.stdout.fnmatch_lines([f"*SimulationError: seed {drawn[0]}: 1 violations", "*sold twice (main, *"])
    assert drawn == (drawn[0], drawn[0], "test_simulated.py::test_violates")
    assert re.search(r"to repeat it: RMQ_SEED=\d+ pytest 'test_simulated.py::test_asserts'", result.stdout.str())

    monkeypatch.setenv("RMQ_SEED", drawn[0])
    result = project.runpytest_subprocess("-s", "-k", "repeats or violates")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"*seed of this run: {drawn[0]}", f"*SimulationError: seed {drawn[0]}: 1 violations"])


def test_a_seed_that_is_no_number_is_named(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_SEED", "seven")
    project.makepyfile(test_simulated=SIMULATED)
    result = project.runpytest_subprocess("-k", "passes or repeats")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*RMQ_SEED must be a whole number, not 'seven'; *"])


def test_a_simulated_test_is_a_plain_one(project: pytest.Pytester) -> None:
    project.makepyfile(test_simulated=SIMULATED)
    result = project.runpytest_subprocess("-k", "async")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*run() was called inside a running event loop; call it from a plain function"])


def test_the_plugin_can_be_turned_off(project: pytest.Pytester) -> None:
    project.makepyfile("def test_it(rocketmq): pass")
    result = project.runpytest_subprocess("-p", "no:rocketmq")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'rocketmq' not found*"])


LOADING = """
import sys, time, pytest
before, begin = set(sys.modules), time.process_time()
import pytest_rmq_async
print(time.process_time() - begin, *sorted(set(sys.modules) - before))
pytest.main(["--markers", "-p", "pytest_rmq_async"])  # --version may end before plugins are loaded
print(*sorted(set(sys.modules) - before))
"""


def test_loading_the_plugin_loads_nothing_and_takes_no_time() -> None:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-W", "error", "-c", LOADING]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd="/")
    assert run.returncode == 0, run.stderr
    first, *_, last = run.stdout.splitlines()
    seconds, *loaded = first.split()
    assert loaded == ["pytest_rmq_async"]
    assert float(seconds) < 0.05  # of CPU; 0.0006 here
    heavy = {"rmq_async", "rmq_protocol", "msgspec", "asyncio", "ssl", "uvloop"}
    assert not [name for name in last.split() if name.partition(".")[0] in heavy]


def test_a_pytest_that_has_nothing_to_do_with_it_loads_the_plugin_alone(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import sys

        def test_modules():
            assert "pytest_rmq_async" in sys.modules
            assert not {"rmq_async", "rmq_protocol", "msgspec"} & set(sys.modules)
        """
    )
    project.runpytest_subprocess().assert_outcomes(passed=1)
