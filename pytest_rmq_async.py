"""A pytest plugin with the fixtures ``rocketmq``, ``rocketmq_cluster`` and ``simulated_rocketmq``.

If rmq-async is installed, every run of pytest in that environment loads this module, even for tests that do not use RocketMQ.
Therefore, this module imports neither the library nor asyncio until a fixture is requested.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rmq_async.embedded import EmbeddedRocketMQ
    from rmq_async.testing import ExternalCluster, RealCluster

_started: pytest.StashKey[RealCluster] = pytest.StashKey()


@pytest.fixture
def rocketmq_options() -> dict[str, Any]:
    """Arguments of EmbeddedRocketMQ for ``rocketmq``, none by default. Override this fixture to pass some, e.g. {"brokers": 2}."""
    return {}


@pytest.fixture
def rocketmq(rocketmq_options: dict[str, Any]) -> Iterator[EmbeddedRocketMQ]:
    """An empty cluster in memory for one test: a name server, whose address is ``rocketmq.namesrv``, and brokers.

    The cluster runs in a thread with its own loop, so plain and ``async`` tests on any loop can use it; see
    rmq_async.testing.ThreadedRocketMQ.
    """
    from rmq_async.testing import ThreadedRocketMQ

    with ThreadedRocketMQ(**rocketmq_options) as server:
        yield server


@pytest.fixture(scope="session")
def rocketmq_cluster_options() -> dict[str, Any]:
    """Arguments of RealCluster for ``rocketmq_cluster``, none by default.

    Override this fixture to pass some, such as {"brokers": 2, "version": "4.9.7"}.
    """
    return {}


@pytest.fixture(scope="session")
def rocketmq_cluster(
    request: pytest.FixtureRequest, rocketmq_cluster_options: dict[str, Any]
) -> Iterator[RealCluster | ExternalCluster]:
    """A cluster of the official servers, which all tests of the session share; ``rocketmq_cluster.namesrv`` is its address.

    ``brokers[0]`` has the coroutines ``stop()``, ``kill()`` and ``start()``, for any loop, and the plain methods ``pause()`` and
    ``resume()``. Servers that a test leaves stopped or paused run again before the next test with this fixture begins.

    If NAMESRV_ADDR is set, the fixture is that cluster, without these methods. If Java is missing, or if Maven is missing and the
    servers' jars were never downloaded, the test is skipped with the reason. With RMQ_REQUIRE_CLUSTER=1, it fails instead.
    """
    from rmq_async.testing.cluster import ExternalCluster, RealCluster, require

    if address := os.environ.get("NAMESRV_ADDR"):
        external = ExternalCluster(address)
        _run(external.start())
        yield external
        return
    cluster = RealCluster(**rocketmq_cluster_options)
    require(cluster.version)
    _run(cluster.start())
    request.config.stash[_started] = cluster
    try:
        yield cluster
    finally:
        del request.config.stash[_started]
        _run(cluster.stop())


@pytest.fixture
def simulated_rocketmq(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A function that runs a coroutine function on a simulated cluster, under virtual time, and then checks the guarantees of the
    library. ``simulated_rocketmq(main)`` returns the result of ``main(simulation)``. It is for plain tests, not for ``async`` ones.

    Other keyword arguments are passed to rmq_async.testing.simulation.Simulation. Without ``seed=``, the seed comes from the
    environment variable RMQ_SEED or, without it, is random. The report of a failed test says how to repeat the run.
    """
    from rmq_async.testing.simulation import Simulation

    seeds: list[int] = []

    def simulate(main: Callable[[Any], Any], *, seed: int | None = None, **options: Any) -> Any:
        if seed is None:
            seed = _seed_of_the_environment() if "RMQ_SEED" in os.environ else int.from_bytes(os.urandom(4), "big")
            if seed not in seeds:
                seeds.append(seed)
                text = f"seed {seed}; to repeat it: RMQ_SEED={seed} pytest '{request.node.nodeid}'"
                request.node.add_report_section("call", "simulated_rocketmq", text)
        simulation = Simulation(seed, **options)
        result = simulation.run(main)
        simulation.check()
        return result

    return simulate


def _seed_of_the_environment() -> int:
    text = os.environ["RMQ_SEED"]
    try:
        return int(text)
    except ValueError:
        raise pytest.UsageError(
            f"RMQ_SEED must be a whole number, not {text!r}; set it to the seed of a report, or unset it"
        ) from None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    cluster = item.config.stash.get(_started, None)
    if cluster is None or "rocketmq_cluster" not in getattr(item, "fixturenames", ()):
        return
    if any(server.paused or not server.running for server in cluster.servers):
        _run(cluster.heal())


def _run(work: Any) -> None:
    import asyncio

    # With a factory, the runner does not set the thread's loop.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(work)
