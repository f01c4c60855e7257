"""Real clusters for the tests below here. JVMs are dear (some 6 s of CPU each start), so they are shared.

All last for the session. No test stops or pauses ``cluster``, ``old_cluster``, ``stock_cluster`` and ``feature_cluster``;
``two_brokers`` is for tests that do.
The fixtures are plain functions with an event loop of their own, so that any test loop may use them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_async.testing._config import PROFILES
from rmq_async.testing.cluster import OLD_VERSION, ExternalCluster, RealCluster, require


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.cluster)


def run(call: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:  # a factory: the thread's own loop stays as it is
        runner.run(call)


@pytest.fixture(scope="session")
def cluster() -> Iterator[RealCluster | ExternalCluster]:
    """One name server, one broker, profile correctness; or the cluster that NAMESRV_ADDR names."""
    if address := os.environ.get("NAMESRV_ADDR"):
        external = ExternalCluster(address)
        run(external.start())
        yield external
        return
    yield from started(RealCluster())


@pytest.fixture(scope="session")
def stock_cluster() -> Iterator[RealCluster]:
    """One name server, one broker, nothing changed but what every test broker needs."""
    yield from started(RealCluster(profile="stock"))


@pytest.fixture(scope="session")
def old_cluster() -> Iterator[RealCluster]:
    """As ``cluster``, of version 4.9.7."""
    if os.environ.get("NAMESRV_ADDR"):
        pytest.skip(f"NAMESRV_ADDR names the cluster to test, {OLD_VERSION} is left out")
    yield from started(RealCluster(version=OLD_VERSION))


@pytest.fixture(scope="session")
def feature_cluster() -> Iterator[RealCluster]:
    """One name server, one broker, profiles transactions, recall and trace together."""
    yield from started(RealCluster(profile=PROFILES["transactions"] | PROFILES["recall"] | PROFILES["trace"]))


@pytest.fixture(params=["cluster", "old_cluster"], ids=["5.5.0", "4.9.7"])
def each_cluster(request: pytest.FixtureRequest) -> RealCluster | ExternalCluster:
    """The test runs once on ``cluster`` and once on ``old_cluster``."""
    found: RealCluster | ExternalCluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def two_brokers_processes() -> Iterator[RealCluster]:
    yield from started(RealCluster(brokers=2, nameservers=2))


@pytest.fixture
def two_brokers(two_brokers_processes: RealCluster) -> RealCluster:
    """Two name servers, two brokers, profile correctness: all of them up, whatever the test before did to them."""
    run(two_brokers_processes.heal())
    return two_brokers_processes


def started(real: RealCluster) -> Iterator[RealCluster]:
    require(real.version)
    run(real.start())
    try:
        yield real
    finally:
        run(real.stop())
