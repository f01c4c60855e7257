"""The plugin's ``rocketmq_cluster`` in a project of its own: controls from plain and async tests, healed between tests."""

from __future__ import annotations

import pytest

from rmq_async.testing._jars import resolve
from rmq_async.testing.cluster import DEFAULT_VERSION, require

PROJECT = """
import asyncio
import pytest
import rmq_async
from rmq_async import Admin, Message, Producer
from rmq_async.testing import ClusterError, RealCluster

async def send(namesrv, topic, **options):
    async with Producer("shop", namesrv=namesrv, **options) as producer:
        return await producer.send(Message(topic, b"paid"))

pids = []

def test_a_plain_test_leaves_it_killed_and_paused(rocketmq_cluster):
    assert isinstance(rocketmq_cluster, RealCluster)
    assert rmq_async.run(send(rocketmq_cluster.namesrv, "Plain")).attempts == 1
    pids.extend(server.pid for server in rocketmq_cluster.servers)
    rocketmq_cluster.brokers[0].pause()
    asyncio.run(rocketmq_cluster.nameservers[0].kill())
    assert not rocketmq_cluster.nameservers[0].running

@pytest.mark.asyncio
async def test_an_async_test_finds_it_running(rocketmq_cluster):
    broker, nameserver = rocketmq_cluster.brokers[0], rocketmq_cluster.nameservers[0]
    assert broker.pid in pids and nameserver.pid not in pids
    assert (await send(rocketmq_cluster.namesrv, "Async", retries=0)).attempts == 1
    broker.pause()
    with pytest.raises(rmq_async.RequestTimeoutError):
        await send(rocketmq_cluster.namesrv, "Async", retries=0, timeout=0.3, stop_timeout=0.1)
    broker.resume()
    assert (await send(rocketmq_cluster.namesrv, "Async")).attempts == 1
    with pytest.raises(ClusterError, match="has not ended 0 s after SIGTERM"):
        await broker.stop(timeout=0)

def test_another_test_is_not_held_up(rocketmq):
    assert rocketmq.namesrv
"""


@pytest.fixture(scope="module")
def cache() -> str:
    """Where the jars and the class data are; found before ``pytester`` changes the home."""
    require()
    return resolve(DEFAULT_VERSION).split(":")[0].rpartition("/rocketmq-")[0]


def test_a_project_with_a_real_cluster(cache: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setenv("RMQ_CLUSTER_CACHE", cache)
    pytester.makefile(".ini", pytest="[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(PROJECT)
    pytester.runpytest_subprocess().assert_outcomes(passed=3)
