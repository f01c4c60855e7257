"""Real clusters for the tests below here. JVMs are dear (some 3 s of CPU each start, a tenth of a core when idle), so they are
shared, and no longer there than they are needed: tests of one cluster come one after the other, and it stops after the last.

No test stops or pauses ``cluster``, ``old_cluster`` and ``feature_cluster``; ``two_brokers`` and ``lone_broker`` are for tests
that do.
The fixtures are plain functions with an event loop of their own, so that any test loop may use them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from rmq_async.testing._config import PROFILES
from rmq_async.testing.cluster import OLD_VERSION, ExternalCluster, RealCluster, require

from ..support.chains import chain_of

HERE: Final = Path(__file__).parent
QUICK_TO_CLEAN: Final = {
    "mappedFileSizeCommitLog": str(32 * 1024 * 1024),
    "cleanResourceInterval": "3000",
    "compactionMappedFileSize": "65536",
    "compactionCqMappedFileSize": "1840",
    "compactionScheduleInternal": "2000",
}
"""For ``test_vanished_real``: files that fill soon, looked at each 3 s (a broker begins with that 60 s after its start, with any
setting), and compacted topics that are compacted soon."""
NO_TIMERS: Final = {"timerWheelEnable": "false"}
"""For a broker without messages due at a time: it writes no wheel of 38 MB at its start, which takes 1.3 s of CPU then, not 1.8 s,
and has seven threads less that look for something to do 100 times a second: idle it takes 5 % of a core, not 7 %."""
OLD_IS_DEEP: Final = pytest.mark.parametrize(
    "each_cluster", ["cluster", pytest.param("old_cluster", marks=pytest.mark.deep)], indirect=True, ids=["5.5.0", "4.9.7"]
)
"""For runs of many calls, each of which other tests hold against both versions: 4.9.7 is left to ``tox -m deep``."""
SHARED: Final[Mapping[str, Callable[[], RealCluster]]] = {
    "two_brokers": lambda: RealCluster(
        brokers=2, nameservers=2, broker_conf=NO_TIMERS, namesrv_conf={"orderMessageEnable": "true"}
    ),
    "lone_broker": lambda: RealCluster(broker_conf=NO_TIMERS),
    "feature_cluster": lambda: RealCluster(
        profile=PROFILES["transactions"] | PROFILES["recall"] | PROFILES["trace"],
        broker_conf={"enablePropertyFilter": "true", "enableLmq": "true", "enableMultiDispatch": "true"},
    ),
    "cluster": lambda: RealCluster(broker_conf=QUICK_TO_CLEAN),
    "old_cluster": lambda: RealCluster(version=OLD_VERSION, broker_conf=QUICK_TO_CLEAN),
    "fresh_cluster": lambda: RealCluster(broker_conf=QUICK_TO_CLEAN | NO_TIMERS),
    "fresh_old_cluster": lambda: RealCluster(version=OLD_VERSION, broker_conf=QUICK_TO_CLEAN),
}
"""In the order in which they are needed, after tests that have servers of their own."""
EARLY: Final = ("fresh_cluster", "fresh_old_cluster")
AHEAD: Final = 60
"""Clusters that start so many tests, which take a minute and a half, before the first that asks for one of them: their brokers
delete nothing in their first 60 s."""

_SHARED_CLUSTERS: Final = pytest.StashKey["SharedClusters"]()
_LAST_OF: Final = pytest.StashKey[list[str]]()
"""The clusters that no test after this one asks for."""
_EARLY_AT: Final = pytest.StashKey[list[str]]()
"""The clusters that a later test asks for and that start with this one."""


def shared_by(item: pytest.Item) -> list[str]:
    """The clusters of ``SHARED`` that a test asks for."""
    asked = {*getattr(item, "fixturenames", ())}
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        asked |= {item.callspec.params.get("each_cluster"), item.callspec.params.get("each_fresh_cluster")}
    return [name for name in SHARED if name in asked]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(HERE)]
    mine = [items[place] for place in places]
    turns = {name: turn for turn, name in enumerate(SHARED)}
    mine.sort(key=lambda item: (chain_of(item.nodeid) or "", [turns[name] for name in shared_by(item)]))
    last = {(chain_of(item.nodeid), name): item for item in mine for name in shared_by(item)}
    first = next((number for number, item in enumerate(mine) if {*EARLY}.intersection(shared_by(item))), 0)
    for number, (place, item) in enumerate(zip(places, mine, strict=True)):
        early = EARLY if number == max(0, first - AHEAD) else ()
        item.stash[_EARLY_AT] = [name for name in early if ("shared servers", name) in last]
        item.add_marker(pytest.mark.cluster)
        item.stash[_LAST_OF] = [name for name in shared_by(item) if last[chain_of(item.nodeid), name] is item]
        items[place] = item


def run(call: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:  # a factory: the thread's own loop stays as it is
        runner.run(call)


class SharedClusters:
    """Those of ``SHARED`` that run."""

    def __init__(self) -> None:
        self.running: dict[str, RealCluster | ExternalCluster] = {}

    def get(self, name: str) -> Any:
        """Starts it where it does not run."""
        address = os.environ.get("NAMESRV_ADDR")
        if address and name == "old_cluster":
            pytest.skip(f"NAMESRV_ADDR names the cluster to test, {OLD_VERSION} is left out")
        if name not in self.running:
            found: RealCluster | ExternalCluster
            if address and name == "cluster":
                found = ExternalCluster(address)
            else:
                found = SHARED[name]()
                require(found.version)
            run(found.start())
            self.running[name] = found
        return self.running[name]

    def stop(self, names: Iterable[str]) -> None:
        for name in names:
            found = self.running.pop(name, None)
            if isinstance(found, RealCluster):
                run(found.stop())

    def stop_all(self) -> None:
        self.stop([*self.running])


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    running = item.session.stash.get(_SHARED_CLUSTERS, None)
    if running is not None:
        running.stop(item.stash[_LAST_OF])


@pytest.fixture(scope="session")
def shared_clusters(request: pytest.FixtureRequest) -> Iterator[SharedClusters]:
    clusters = request.session.stash[_SHARED_CLUSTERS] = SharedClusters()
    yield clusters
    clusters.stop_all()


@pytest.fixture(autouse=True)
def _early_clusters(request: pytest.FixtureRequest) -> None:
    for name in request.node.stash[_EARLY_AT]:
        request.getfixturevalue("shared_clusters").get(name)


@pytest.fixture
def cluster(shared_clusters: SharedClusters) -> RealCluster | ExternalCluster:
    """One name server, one broker, profile correctness; or the cluster that NAMESRV_ADDR names."""
    found: RealCluster | ExternalCluster = shared_clusters.get("cluster")
    return found


@pytest.fixture
def old_cluster(shared_clusters: SharedClusters) -> RealCluster:
    """As ``cluster``, of version 4.9.7."""
    found: RealCluster = shared_clusters.get("old_cluster")
    return found


@pytest.fixture
def feature_cluster(shared_clusters: SharedClusters) -> RealCluster:
    """One name server, one broker, profiles transactions, recall and trace together, filters by properties, and lite topics."""
    found: RealCluster = shared_clusters.get("feature_cluster")
    return found


@pytest.fixture(params=["cluster", "old_cluster"], ids=["5.5.0", "4.9.7"])
def each_cluster(request: pytest.FixtureRequest, shared_clusters: SharedClusters) -> RealCluster | ExternalCluster:
    """The test runs once on ``cluster`` and once on ``old_cluster``."""
    found: RealCluster | ExternalCluster = shared_clusters.get(request.param)
    return found


@pytest.fixture
def two_brokers(shared_clusters: SharedClusters) -> RealCluster:
    """Two name servers, two brokers, profile correctness: all of them up, after any faults of the test before."""
    found: RealCluster = shared_clusters.get("two_brokers")
    run(found.heal())
    return found


@pytest.fixture
def lone_broker(shared_clusters: SharedClusters) -> RealCluster:
    """One name server, one broker, profile correctness, up after any faults of the test before."""
    found: RealCluster = shared_clusters.get("lone_broker")
    run(found.heal())
    return found


def started(real: RealCluster) -> Iterator[RealCluster]:
    require(real.version)
    run(real.start())
    try:
        yield real
    finally:
        run(real.stop())


@pytest.fixture(params=["fresh_cluster", "fresh_old_cluster"], ids=["5.5.0", "4.9.7"])
def each_fresh_cluster(request: pytest.FixtureRequest, shared_clusters: SharedClusters) -> RealCluster:
    """A cluster with no files but those of the tests that ask for it (a broker deletes ten at a time), of each version."""
    found: RealCluster = shared_clusters.get(request.param)
    return found
