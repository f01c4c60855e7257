"""The launcher of real clusters: readiness, control of each server, and nothing left behind however its owner ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import rmq_async.testing.cluster as launcher
from rmq_async.testing._config import BROKER_CLASS, NAME_SERVER_CLASS, PROFILES
from rmq_async.testing._jars import ClassData, find_java, find_maven, resolve
from rmq_async.testing._ports import find_ports
from rmq_async.testing._probe import ask, broker_addresses, not_routed
from rmq_async.testing.cluster import ClusterError, ExternalCluster, Profile, RealCluster, Server, require
from rmq_protocol.constants import RequestCode


async def until(condition: Callable[[], object], timeout: float) -> float:
    """Seconds until the condition holds; fails when it does not within ``timeout``."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < timeout, f"not within {timeout} s"
        await asyncio.sleep(0.02)
    return time.monotonic() - begin


async def routed(nameserver: Server, broker: Server) -> bool:
    return not await not_routed(nameserver.address, [broker.address], default_topic=True)


async def until_routed(nameserver: Server, broker: Server, wanted: bool, timeout: float) -> float:
    begin = time.monotonic()
    while await routed(nameserver, broker) is not wanted:
        assert time.monotonic() - begin < timeout, f"{broker} routed by {nameserver} is not {wanted} within {timeout} s"
        await asyncio.sleep(0.02)
    return time.monotonic() - begin


def gone(*pids: int) -> bool:
    return not any(map(psutil.pid_exists, pids))


async def test_everything_is_routed_when_start_returns(two_brokers: RealCluster) -> None:
    assert two_brokers.namesrv == ";".join(server.address for server in two_brokers.nameservers)
    for nameserver in two_brokers.nameservers:
        found = await broker_addresses(nameserver.address)
        assert found == {"broker-a": two_brokers.brokers[0].address, "broker-b": two_brokers.brokers[1].address}
        assert all([await routed(nameserver, broker) for broker in two_brokers.brokers])


async def test_a_cluster_is_of_the_version_asked_for(each_cluster: RealCluster | ExternalCluster) -> None:
    if isinstance(each_cluster, ExternalCluster):
        pytest.skip("NAMESRV_ADDR names the cluster to test")
    for server in (each_cluster.nameservers[0], each_cluster.brokers[0]):
        answer = await ask(server.address, RequestCode.GET_BROKER_CLUSTER_INFO)
        assert answer is not None
        assert answer.version == {launcher.DEFAULT_VERSION: 513, launcher.OLD_VERSION: 407}[each_cluster.version]  # MQVersion
    assert await broker_addresses(each_cluster.nameservers[0].address) == {
        each.name: each.address for each in each_cluster.brokers
    }


def test_servers_listen_on_loopback_but_for_the_ha_port_and_in_a_group_of_their_own(two_brokers: RealCluster) -> None:
    for server in two_brokers.servers:
        sockets = psutil.Process(server.pid).net_connections(kind="tcp")
        listening = {(s.laddr.ip.removeprefix("::ffff:"), s.laddr.port) for s in sockets if s.status == psutil.CONN_LISTEN}
        ports = {server.port, server.port - 2} if server in two_brokers.brokers else {server.port}
        ha = {("::", server.port + 1)} if server in two_brokers.brokers else set()
        assert listening == {("127.0.0.1", port) for port in ports} | ha
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_what_a_server_uses_can_be_read(two_brokers: RealCluster) -> None:
    broker = two_brokers.brokers[0]
    assert 100 << 20 < broker.rss_bytes < 1 << 30
    assert broker.cpu_seconds() > 0.5
    assert two_brokers.cpu_seconds(broker) >= 0.5


async def test_a_killed_broker_leaves_the_route_and_comes_back_on_its_store_and_port(two_brokers: RealCluster) -> None:
    broker, nameserver = two_brokers.brokers[0], two_brokers.nameservers[0]
    topic = {"topic": "Restart", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    created = await ask(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, dict(topic))
    assert created is not None
    assert created.code == 0
    send = {"a": "group", "b": "Restart", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(time.time_ns() // 1000000)}
    send |= {"h": "0", "i": "", "j": "0", "k": "false", "l": "0", "m": "false"}
    sent = await ask(broker.address, RequestCode.SEND_MESSAGE_V2, dict(send), b"kept")
    assert sent is not None
    assert sent.code == 0

    pid, port = broker.pid, broker.port
    await broker.kill()
    assert not broker.running
    assert gone(pid)
    await until_routed(nameserver, broker, False, 2)
    assert await routed(nameserver, two_brokers.brokers[1])
    with pytest.raises(ClusterError, match="broker-a is not running"):
        _ = broker.pid

    await broker.start()
    assert (broker.running, broker.port) == (True, port)
    assert broker.pid != pid
    assert all([await routed(each, broker) for each in two_brokers.nameservers])
    found = await ask(broker.address, RequestCode.GET_MAX_OFFSET, {"topic": "Restart", "queueId": "0"})
    assert found is not None
    assert found.ext_fields == {"offset": "1"}


async def test_a_paused_server_answers_nothing_until_resumed(two_brokers: RealCluster) -> None:
    broker = two_brokers.brokers[0]
    broker.pause()
    assert (broker.running, broker.paused) == (True, True)
    assert psutil.Process(broker.pid).status() == psutil.STATUS_STOPPED
    assert await ask(broker.address, RequestCode.GET_BROKER_CONFIG) is None
    broker.resume()
    assert not broker.paused
    answer = await ask(broker.address, RequestCode.GET_BROKER_CONFIG)
    assert answer is not None
    assert answer.code == 0


async def test_a_restarted_name_server_routes_to_all_brokers_at_once(two_brokers: RealCluster) -> None:
    nameserver = two_brokers.nameservers[0]
    await nameserver.kill()
    assert await broker_addresses(nameserver.address) == {}
    assert len(await broker_addresses(two_brokers.nameservers[1].address)) == 2
    await nameserver.start()
    assert len(await broker_addresses(nameserver.address)) == 2


async def test_a_cluster_of_others_has_the_same_attributes_and_no_controls(two_brokers: RealCluster) -> None:
    external = ExternalCluster(two_brokers.namesrv)
    await external.start()
    assert [(broker.name, broker.address) for broker in external.brokers] == [
        (broker.name, broker.address) for broker in two_brokers.brokers
    ]
    with pytest.raises(ClusterError, match="NAMESRV_ADDR"):
        await external.brokers[0].kill()
    with pytest.raises(ClusterError, match="NAMESRV_ADDR"):
        external.brokers[0].pause()
    with pytest.raises(ClusterError, match="NAMESRV_ADDR"):
        await external.nameservers[0].stop()
    await external.stop()
    assert all(server.running for server in two_brokers.servers)


async def test_an_orderly_stop_leaves_the_route_first_and_then_ends(two_brokers: RealCluster) -> None:
    broker = two_brokers.brokers[1]
    pid = broker.pid
    with pytest.raises(ClusterError, match=r"broker-b has not ended 0.5 s after SIGTERM"):
        await broker.stop(timeout=0.5)
    assert broker.running
    for nameserver in two_brokers.nameservers:
        assert await until_routed(nameserver, broker, False, 2) < 2
    await broker.stop()
    assert gone(pid)
    await broker.stop()  # once more does no harm
    await broker.kill()


async def test_stop_leaves_no_process_no_socket_and_no_directory() -> None:
    require()
    before = set(psutil.Process().children(recursive=True))
    real = RealCluster()
    await real.start()
    directory = real.brokers[0].directory.parent
    children = set(psutil.Process().children(recursive=True)) - before
    ports = [server.port for server in real.servers]
    assert {server.pid for server in real.servers} < {child.pid for child in children}
    real.brokers[0].pause()
    await real.stop()
    assert gone(*(child.pid for child in children))
    assert not directory.exists()
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    with pytest.raises(ClusterError, match="has been stopped"):
        await real.brokers[0].start()
    await real.stop()


@pytest.mark.parametrize("kind", [str, Path])
async def test_a_given_directory_stays_with_its_store(kind: type[str | Path], tmp_path: Path) -> None:
    require()
    async with RealCluster(brokers=0, directory=kind(tmp_path / "kept")) as real:
        assert real.nameservers[0].directory == tmp_path / "kept" / "namesrv-0"
    assert (tmp_path / "kept" / "namesrv-0" / "server.conf").exists()


async def test_what_servers_load_is_kept_for_the_next_ones(two_brokers: RealCluster) -> None:
    java = find_java()
    assert java is not None
    data = [ClassData(java, name, resolve(launcher.DEFAULT_VERSION)) for name in (NAME_SERVER_CLASS, BROKER_CLASS)]
    assert not any(each.wanted for each in data), "the first servers have tried"
    if not all(each.options() for each in data):
        pytest.skip("this Java cannot do it: that takes a JDK of 17 or later")
    async with RealCluster(brokers=0) as real:
        (option,) = data[0].options()
        assert option.partition("=")[2] in Path(f"/proc/{real.nameservers[0].pid}/maps").read_text()


OWNER = """
import asyncio, os, sys, time
from rmq_async.testing.cluster import RealCluster

cluster = RealCluster(brokers=0)
asyncio.run(cluster.start())
server = cluster.nameservers[0]
if sys.argv[1] == "fork":
    if not (child := os.fork()):
        sys.exit(0)  # runs the exit handlers it inherited
    assert os.waitpid(child, 0)[1] == 0
    assert server.running
print(server.pid, server.directory.parent, flush=True)
if sys.argv[1] == "_exit":
    os._exit(3)
if sys.argv[1].startswith("SIG"):
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT", "_exit", "return", "fork"])
async def test_nothing_outlives_its_owner_however_that_ends(how: str) -> None:
    require()
    command = [sys.executable, "-c", OWNER, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        line = await asyncio.to_thread(owner.stdout.readline)
        pid, directory = line.split()
        if how.startswith("SIG"):
            assert not gone(int(pid))
            owner.send_signal(signal.Signals[how])
        try:
            await until(lambda: owner.poll() is not None, 10)
        finally:
            owner.kill()
    await until(lambda: gone(int(pid)), 20)
    await until(lambda: not Path(directory).exists(), 20)  # a busy disk takes its time


async def test_a_start_that_fails_shows_the_log_and_leaves_nothing() -> None:
    require()
    before = psutil.Process().children()
    real = RealCluster(profile=Profile(name_server_jvm=("-XX:+NoSuchOption",)))
    with pytest.raises(ClusterError, match=r"namesrv-0 ended with exit code 1(?s:.*)NoSuchOption"):
        await real.start()
    assert psutil.Process().children() == before


async def test_a_cancelled_start_leaves_nothing() -> None:
    require()
    before = psutil.Process().children()
    real = RealCluster()
    task = asyncio.create_task(real.start())
    await until(lambda: real.brokers and real.brokers[0].running, 10)
    directory = real.brokers[0].directory.parent
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert psutil.Process().children() == before
    assert not directory.exists()


async def test_a_port_taken_in_the_meantime_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    require()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answers = [[port]]
        monkeypatch.setattr(launcher, "find_ports", lambda wanted: answers.pop() if answers else find_ports(wanted))
        async with RealCluster(brokers=0) as real:
            assert real.nameservers[0].port != port
    assert not answers


def test_found_ports_are_free_apart_and_outside_the_range_of_outgoing_connections() -> None:
    ports = find_ports([(0,), (0, -2, 1), (0, -2, 1)])
    used = [ports[0], *(port + offset for port in ports[1:] for offset in (0, -2, 1))]
    assert len(set(used)) == 7
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if low >= 12_000:
        assert not any(low <= port <= high for port in used)


async def test_a_disk_too_full_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require()
    monkeypatch.setattr(launcher, "DISK_LIMIT", 0.0)
    with pytest.raises(ClusterError, match="% full"):
        await RealCluster().start()


def test_profiles_add_up_and_the_later_one_wins() -> None:
    both = PROFILES["tls"] | Profile(
        broker={"recallMessageEnable": "true", "waitTimeMillsInSendQueue": "1"}, broker_jvm=("-Da",)
    )
    assert both.tls
    assert (both.broker["recallMessageEnable"], both.broker["waitTimeMillsInSendQueue"]) == ("true", "1")
    assert both.broker["osPageCacheBusyTimeOutMills"] == "10000"
    assert both.broker_jvm == (*PROFILES["tls"].broker_jvm, "-Da")
    assert (PROFILES["auth"] | both).credentials is PROFILES["auth"].credentials
    with pytest.raises(ClusterError, match="no certificates"):
        _ = RealCluster(profile="tls").certificates


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ClusterError, match="profile 'fast' is unknown; choose one of correctness, stock"):
        RealCluster(profile="fast")
    with pytest.raises(ClusterError, match="at least 0, not nameservers=0, brokers=1, replicas=0"):
        RealCluster(nameservers=0)
    with pytest.raises(ClusterError, match="has not been started"):
        _ = RealCluster().namesrv
    with pytest.raises(ClusterError, match=r"version must have the form 5\.5\.0, not 'latest'"):
        resolve("latest")


def test_without_java_or_maven_tests_are_skipped_or_fail_where_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require()
    monkeypatch.delenv("RMQ_REQUIRE_CLUSTER", raising=False)
    monkeypatch.setenv("RMQ_CLUSTER_CACHE", str(tmp_path))
    java = find_java()
    assert java is not None
    monkeypatch.setenv("JAVA_HOME", str(Path(java).resolve().parent.parent))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.skip.Exception, match="no Maven"):
        require()
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(pytest.skip.Exception, match="no Java"):
        require()
    monkeypatch.setenv("RMQ_REQUIRE_CLUSTER", "1")
    with pytest.raises(pytest.fail.Exception, match="RMQ_REQUIRE_CLUSTER=1, but no Java"):
        require()


@pytest.mark.deep
async def test_two_processes_may_fill_the_jar_cache_at_once_and_it_mends_itself(tmp_path: Path) -> None:
    require()
    if find_maven() is None:
        pytest.skip("no Maven, only its cached result")
    script = "from rmq_async.testing._jars import find_java, find_maven, resolve; print(resolve('5.5.0'))"
    environment = {**os.environ, "RMQ_CLUSTER_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", script]

    async def resolved() -> list[str]:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.PIPE)
        output, _ = await process.communicate()
        assert process.returncode == 0
        return output.decode().strip().split(os.pathsep)

    first, second = await asyncio.gather(resolved(), resolved())
    assert first == second
    assert any("rocketmq-broker-5.5.0" in jar for jar in first)
    assert all(Path(jar).stat().st_size for jar in first)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rocketmq-5.5.0", "rocketmq-5.5.0.lock"]
    Path(first[0]).unlink()
    assert await resolved() == first
    assert Path(first[0]).exists()
