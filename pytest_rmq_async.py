"""pytest plugin: the fixtures ``rocketmq``, ``rocketmq_cluster`` and ``simulated_rocketmq``.

pytest finds it by itself once rmq-async is installed.

Every pytest run on the machine loads this module, whether it has to do with RocketMQ or not. So it stands outside the package
(importing ``rmq_async.anything`` would load the client, asyncio and TLS) and imports nothing of ours, nor asyncio, until a
fixture is asked for.
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
    """Arguments of EmbeddedRocketMQ for ``rocketmq``; override it to have others, say {"brokers": 2}."""
    return {}


@pytest.fixture
def rocketmq(rocketmq_options: dict[str, Any]) -> Iterator[EmbeddedRocketMQ]:
    """A name server and brokers of the test's own, empty, in memory, at ``rocketmq.namesrv``.

    They run in a thread with a loop of their own, so plain and ``async`` tests on any loop may use them; see
    rmq_async.testing.ThreadedRocketMQ.
    """
    from rmq_async.testing import ThreadedRocketMQ

    with ThreadedRocketMQ(**rocketmq_options) as server:
        yield server


@pytest.fixture(scope="session")
def rocketmq_cluster_options() -> dict[str, Any]:
    """Arguments of RealCluster for ``rocketmq_cluster``; override it to have others, say {"brokers": 2, "version": "4.9.7"}."""
    return {}


@pytest.fixture(scope="session")
def rocketmq_cluster(
    request: pytest.FixtureRequest, rocketmq_cluster_options: dict[str, Any]
) -> Iterator[RealCluster | ExternalCluster]:
    """The official name server and broker, once for the session: ``.namesrv``, and ``.brokers[0].stop()``, ``kill()``,
    ``start()`` (coroutines, on any loop), ``pause()`` and ``resume()`` (plain calls). Servers that a test left stopped or paused
    run again before the next test with this fixture begins.

    NAMESRV_ADDR set: that cluster instead, without controls. Without Java, or without Maven at the first time, the test is
    skipped with the reason; with RMQ_REQUIRE_CLUSTER=1 it fails.
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
    """Runs a coroutine function on a simulated cluster, under virtual time, and checks what was promised:
    ``simulated_rocketmq(main)`` returns what ``main(simulation)`` returns. For plain tests.

    Further keywords are those of rmq_async.testing.simulation.Simulation. Without ``seed=`` it is that of the environment
    variable RMQ_SEED, else a drawn one; the report of a test that fails says how to repeat it.
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
        raise pytest.UsageError(f"RMQ_SEED must be a whole number, not {text!r}") from None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    cluster = item.config.stash.get(_started, None)
    if cluster is None or "rocketmq_cluster" not in getattr(item, "fixturenames", ()):
        return
    if any(server.paused or not server.running for server in cluster.servers):
        _run(cluster.heal())


def _run(work: Any) -> None:
    import asyncio

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:  # a factory: the thread's own loop stays as it is
        runner.run(work)
