"""The official Apache RocketMQ name server and brokers as child processes, for tests and benchmarks.

    async with RealCluster(brokers=2) as cluster:
        producer = Producer("group", namesrv=cluster.namesrv)
        ...
        await cluster.brokers[0].kill()

Strategy. Servers are plain JVMs on 127.0.0.1, each with a directory of its own (store, logs, tmp, home) under one that is
deleted at the end. They are all started at once: a start is 6 s of CPU, most of it class loading, and takes 3-4 s on two idle
cores. A broker registers by itself with the name servers it happens to have probed, after 4 s or after 14 s; it is asked to
do so at once instead (see ``_probe``). They are ended by one SIGKILL to their process group (an orderly stop takes 16 s), at
``stop``, at interpreter exit, or by the guard process when this process is gone (see ``_guard``). Nothing is tied to an event
loop: a cluster may be started, used and stopped in different loops, one after the other.

A broker's HA port (its port + 1) listens on all interfaces whatever it is told; everything else is on 127.0.0.1 only.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ..credentials import Credentials
from ._certificates import Certificates
from ._class_data import ClassData
from ._config import (
    BROKER_CLASS,
    NAME_SERVER_CLASS,
    PROFILES,
    Profile,
    broker_keys,
    java_command,
    jvm_options,
    name_server_keys,
    replica_keys,
    write_configuration,
)
from ._errors import ClusterError, PortInUseError
from ._jars import find_java, missing, resolve
from ._ports import BROKER_OFFSETS, find_ports
from ._probe import PLAIN, Access, broker_addresses, commit_log_end, hurry_registration, not_routed
from ._process import Group, ServerProcess
from ._server import Launch, Server

__all__ = [
    "DEFAULT_VERSION",
    "OLD_VERSION",
    "ClusterError",
    "ExternalCluster",
    "Profile",
    "RealCluster",
    "Server",
    "is_available",
    "require",
]

DEFAULT_VERSION: Final = "5.5.0"
OLD_VERSION: Final = "4.9.7"
"""The youngest 4.x with all its jars in Maven. These two versions were tried."""
START_TIMEOUT: Final = 120.0
DISK_LIMIT: Final = 0.88
"""Fuller than this nothing is started: from 85 % on a broker deletes messages, at 90 % it refuses them."""

_HURRY_INTERVAL = 0.5


def is_available(version: str = DEFAULT_VERSION) -> tuple[bool, str]:
    """Whether a cluster of that version can be started here, and if not, why not."""
    reason = missing(version)
    return not reason, reason


def require(version: str = DEFAULT_VERSION) -> None:
    """For tests: skips where no cluster can be started, with the reason; fails instead where RMQ_REQUIRE_CLUSTER=1."""
    import pytest

    available, reason = is_available(version)
    if not available and os.environ.get("RMQ_REQUIRE_CLUSTER") == "1":
        pytest.fail(f"RMQ_REQUIRE_CLUSTER=1, but {reason}", pytrace=False)
    if not available:
        pytest.skip(f"real RocketMQ {version}: {reason}")


class ExternalCluster:
    """A cluster that others run, with the same attributes; its servers cannot be controlled."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        addresses = [address.strip() for address in namesrv.replace(",", ";").split(";") if address.strip()]
        self.nameservers = [Server(f"namesrv-{number}", address) for number, address in enumerate(addresses)]
        self.brokers: list[Server] = []
        self.replicas: list[Server] = []
        """None, also where the cluster has some: nothing here controls them."""

    async def start(self) -> None:
        """Reads the brokers. Raises ClusterError when no name server lists any."""
        for server in self.nameservers:
            if found := await broker_addresses(server.address):
                self.brokers = [Server(name, address) for name, address in sorted(found.items())]
                return
        raise ClusterError(f"no name server of NAMESRV_ADDR={self.namesrv} lists a broker")

    async def stop(self) -> None:
        """Leaves the cluster as it is."""


class RealCluster:
    """``profile``: "correctness" (patient limits), "stock" (none changed), these and one thing more ("auth", "authorization",
    "transactions", "recall", "trace", "go-away", "tls", "mutual-tls"), or a Profile of your own; keys that a ``version`` does not
    know do nothing there. ``version``: "5.5.0" or "4.9.7", others were not tried.

    ``replicas``: of each broker (slaves of an asynchronous master), in the order of the brokers; ``broker-a-1`` is the first of
    broker-a. ``small``: small heaps (450 MB resident for one broker); False for benchmarks (700 MB). ``broker_conf`` and
    ``namesrv_conf`` go on top of the profile's keys. ``directory``: where everything is kept; what is there stays there after
    ``stop``, and a store found there is used. Without it a temporary directory that is deleted.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        nameservers: int = 1,
        replicas: int = 0,
        profile: str | Profile = "correctness",
        small: bool = True,
        version: str = DEFAULT_VERSION,
        broker_conf: Mapping[str, str] | None = None,
        namesrv_conf: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        if brokers < 0 or nameservers < 1 or replicas < 0:
            raise ClusterError(
                f"a cluster of {nameservers} name servers and {brokers} brokers with {replicas} replicas each is none"
            )
        if isinstance(profile, str) and profile not in PROFILES:
            raise ClusterError(f"profile {profile!r} is unknown, there are {', '.join(PROFILES)}")
        self.version = version
        self.profile = PROFILES[profile] if isinstance(profile, str) else profile
        self.nameservers: list[Server] = []
        self.brokers: list[Server] = []
        self.replicas: list[Server] = []
        self._counts = (nameservers, brokers, replicas)
        self._small = small
        self._broker_conf = {**self.profile.broker, **(broker_conf or {})}
        self._namesrv_conf = {**self.profile.name_server, **(namesrv_conf or {})}
        self._given_directory = directory
        self._certificates: Certificates | None = None
        self._access = PLAIN
        self._root: Path | None = None
        self._group: Group | None = None
        self._owner = 0
        self._class_data: dict[str, ClassData] = {}

    @property
    def namesrv(self) -> str:
        """The name servers' addresses as clients take them, joined by ";". Raises ClusterError before ``start``."""
        if not self.nameservers:
            raise ClusterError("the cluster has not been started")
        return ";".join(server.address for server in self.nameservers)

    @property
    def credentials(self) -> Credentials | None:
        """Of a user who may do everything; None where the profile has no users."""
        return self.profile.credentials

    @property
    def certificates(self) -> Certificates:
        """Of this cluster. Raises ClusterError before ``start`` and where the profile is without TLS."""
        if self._certificates is None:
            raise ClusterError("the cluster has no certificates: it has not been started, or its profile is not one of TLS")
        return self._certificates

    @property
    def servers(self) -> list[Server]:
        return [*self.nameservers, *self.brokers, *self.replicas]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, timeout: float = START_TIMEOUT) -> None:
        """Returns when every name server routes to every broker. Nothing is left behind when it fails or is cancelled.

        The first start on a machine lets Maven fetch the jars, which may take minutes, and then has the servers write down the
        classes they have loaded; both do not count in ``timeout`` (seconds). Raises ClusterError: no Java or Maven, disk too
        full, a server that ends or is not ready in time (with the end of its log).
        """
        if self._group is not None:
            raise ClusterError("the cluster has been started already")
        if reason := missing(self.version):
            raise ClusterError(reason)
        class_path = await asyncio.to_thread(resolve, self.version)
        for attempt in range(3):
            try:
                self._lay_out(class_path)
                await self._launch(time.monotonic() + timeout)
                await self._keep_class_data()
                return
            except BaseException as error:
                self._end()
                if attempt == 2 or not isinstance(error, PortInUseError):
                    raise

    async def stop(self) -> None:
        """SIGKILL to all of it, then its directory goes. Harmless where it does not run."""
        await asyncio.to_thread(self._end)

    async def heal(self, timeout: float = START_TIMEOUT) -> None:
        """Resumes what is paused, starts what is down, and returns when every name server routes to every broker again."""
        deadline = time.monotonic() + timeout
        for server in self.servers:
            if server.paused:
                server.resume()
            if not server.running:
                server.spawn()
        await self._until_up(deadline)

    async def replicated(self, timeout: float = 60.0) -> None:
        """Returns when each replica's commit log reaches as far as its broker's did at the call; both must run.

        A replica connects some 5 s after its start. Settings of topics follow within a minute (5.5.0): until then a replica refuses
        pulls of a new topic. Raises ClusterError after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        ends = [await self._log_end(broker, deadline) for broker in self.brokers]
        for number, replica in enumerate(self.replicas):
            wanted = ends[number // self._counts[2]]
            while (copied := await self._log_end(replica, deadline)) < wanted:
                if time.monotonic() >= deadline:
                    raise ClusterError(
                        f"{replica.name} has {copied} of {wanted} bytes after {timeout:g} s\n{replica.log_tail()}"
                    )
                await asyncio.sleep(0.05)

    def cpu_seconds(self, server: Server) -> float:
        """The same as ``server.cpu_seconds()``."""
        return server.cpu_seconds()

    def _lay_out(self, class_path: str) -> None:
        """Directory, process group, ports and Server objects; no server runs yet."""
        given = self._given_directory
        if given is not None:
            given.mkdir(parents=True, exist_ok=True)
        _check_disk(given or Path(tempfile.gettempdir()))
        self._owner = os.getpid()
        atexit.register(self._end)
        self._root = (given or Path(tempfile.mkdtemp(prefix="rmq-cluster-"))).resolve()
        self._group = Group(self._root if given is None else None)
        self._certificates = Certificates.make(self._root / "certificates") if self.profile.tls else None
        self._access = self._own_access()
        nameservers, brokers, replicas = self._counts
        ports = find_ports([(0,)] * nameservers + [BROKER_OFFSETS] * (brokers * (1 + replicas)))
        addresses = ";".join(f"127.0.0.1:{port}" for port in ports[:nameservers])
        self.nameservers, self.brokers, self.replicas = [], [], []
        for number, port in enumerate(ports[:nameservers]):
            keys = {**name_server_keys(port), **self._namesrv_conf}
            server = self._server(f"namesrv-{number}", port, NAME_SERVER_CLASS, class_path, keys)
            self.nameservers.append(server)
        for number, port in enumerate(ports[nameservers : nameservers + brokers]):
            name = f"broker-{chr(ord('a') + number)}" if number < 26 else f"broker-{number}"
            keys = {**broker_keys(name, port, addresses, self._root / name), **self._broker_conf}
            self.brokers.append(self._server(name, port, BROKER_CLASS, class_path, keys))
        for number, port in enumerate(ports[nameservers + brokers :]):
            master, which = self.brokers[number // replicas], number % replicas + 1
            name = f"{master.name}-{which}"
            keys = {**broker_keys(master.name, port, addresses, self._root / name), **self._broker_conf}
            keys |= replica_keys(which)
            self.replicas.append(self._server(name, port, BROKER_CLASS, class_path, keys))

    def _server(self, name: str, port: int, main_class: str, class_path: str, keys: Mapping[str, str]) -> Server:
        assert self._root is not None
        directory = self._root / name
        certificates = self._certificates.directory if self._certificates is not None else None
        options = jvm_options(self.profile, main_class, certificates)
        java = find_java() or "java"
        data = self._class_data[main_class] = ClassData(java, main_class, class_path)
        command = java_command(java, main_class, class_path, directory, small=self._small, options=(*data.options(), *options))
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(directory), "ROCKETMQ_HOME": str(directory)}

        def prepare() -> ServerProcess:
            if self._group is None:
                raise ClusterError(f"{name} cannot be started: its cluster has been stopped")
            write_configuration(directory, keys, version=self.version)
            log = directory / "output.log"
            return ServerProcess(command, directory=directory, environment=environment, group=self._group.id, log=log)

        return Server(name, f"127.0.0.1:{port}", Launch(directory, prepare, self._until_serving))

    async def _keep_class_data(self) -> None:
        for main_class, servers in ((NAME_SERVER_CLASS, self.nameservers), (BROKER_CLASS, self.brokers)):
            if servers and (data := self._class_data[main_class]).wanted:
                await asyncio.to_thread(data.write, servers[0].pid)

    def _own_access(self) -> Access:
        made = self._certificates
        tls = made.context(client=self.profile.client_certificate) if made is not None else None
        return Access(tls, self.profile.credentials)

    async def _launch(self, deadline: float) -> None:
        for server in self.servers:
            server.spawn()
        await self._until_up(deadline)

    async def _until_up(self, deadline: float) -> None:
        for server in self.servers:
            await server.wait_port(deadline)
        await self._until_routed(self.nameservers, [*self.brokers, *self.replicas], deadline)
        await self._introduce(self.replicas)

    async def _until_serving(self, server: Server, deadline: float) -> None:
        """What a server started again is waited for: a broker by all name servers, a name server by all brokers."""
        if server not in self.nameservers:
            nameservers = [each for each in self.nameservers if each.running and not each.paused]
            await self._until_routed(nameservers, [server], deadline)
            await self._introduce([server] if server in self.replicas else [])
        else:
            brokers = [each for each in (*self.brokers, *self.replicas) if each.running and not each.paused]
            await self._until_routed([server], brokers, deadline)

    async def _introduce(self, replicas: Sequence[Server]) -> None:
        """A replica hears of its master at a registration; it may have been there first."""
        await asyncio.gather(*(hurry_registration(replica.address, self._access) for replica in replicas))

    async def _log_end(self, broker: Server, deadline: float) -> int:
        while (end := await commit_log_end(broker.address, self._access)) is None:
            broker.check_alive()
            if time.monotonic() >= deadline:
                raise ClusterError(f"{broker.name} does not say in time what it holds\n{broker.log_tail()}")
            await asyncio.sleep(0.05)
        return end

    async def _until_routed(self, nameservers: Sequence[Server], brokers: Sequence[Server], deadline: float) -> None:
        addresses = [broker.address for broker in brokers]
        topic = self._broker_conf.get("autoCreateTopicEnable") != "false"
        hurry_at = 0.0
        while True:
            absent = await asyncio.gather(
                *(not_routed(each.address, addresses, default_topic=topic, access=self._access) for each in nameservers)
            )
            late = [broker for broker in brokers if any(broker.address in each for each in absent)]
            if not late:
                return
            for server in (*nameservers, *late):
                server.check_alive()
            now = time.monotonic()
            if now >= deadline:
                tails = "\n".join(server.log_tail() for server in (*nameservers, *late))
                raise ClusterError(f"not registered in time: {', '.join(broker.name for broker in late)}\n{tails}")
            if now >= hurry_at:
                hurry_at = now + _HURRY_INTERVAL
                await asyncio.gather(*(hurry_registration(broker.address, self._access) for broker in late))
            await asyncio.sleep(0.1)

    def _end(self) -> None:
        """Ends everything; does nothing the second time, and in a forked child, whose parent's cluster it is."""
        if self._owner != os.getpid():
            return
        atexit.unregister(self._end)
        group, self._group = self._group, None
        root, self._root = self._root, None
        if group is not None:
            group.kill()
            for server in self.servers:
                server._reap()
        if root is not None and self._given_directory is None:
            shutil.rmtree(root, ignore_errors=True)


def _check_disk(directory: Path) -> None:
    usage = shutil.disk_usage(directory)
    share = usage.used / (usage.used + usage.free)
    if share > DISK_LIMIT:
        raise ClusterError(
            f"the disk of {directory} is {share:.0%} full; above {DISK_LIMIT:.0%} no broker is started "
            "(it would delete messages or refuse them)"
        )
