"""The official Apache RocketMQ name server and brokers as child processes, for tests and benchmarks.

    async with RealCluster(brokers=2) as cluster:
        producer = Producer("group", namesrv=cluster.namesrv)
        ...
        await cluster.brokers[0].kill()

Servers are JVMs on 127.0.0.1. Each server has its own directory (store, logs, tmp, home) inside the directory of the cluster.
Servers start in parallel. With class data (see ``ClassData`` in ``_jars``), the start of a name server and a small broker uses
2.4 s of CPU and takes 1.7 s on two cores (5.5.0). A broker would register with the name servers only after 4 s or 14 s, so it
is made to register at once (see ``_probe``). One SIGKILL to their process group ends the servers, because an orderly stop takes
16 s. It is sent by ``stop``, at interpreter exit, or by the guard process when this process has ended (see ``_guard``). A
cluster is not bound to an event loop: it can be started, used and stopped in different loops, one after the other.

A broker's HA port (its port + 1) always listens on all interfaces. All other ports are on 127.0.0.1 only.
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
from typing import Final

from .._asyncio import Startable
from ..credentials import Credentials
from ._certificates import Certificates
from ._config import (
    BROKER_CLASS,
    NAME_SERVER_CLASS,
    PROFILES,
    Profile,
    broker_keys,
    java_command,
    jvm_options,
    name_server_keys,
    write_configuration,
)
from ._errors import ClusterError, PortInUseError
from ._jars import ClassData, find_java, missing, resolve
from ._ports import BROKER_OFFSETS, find_ports
from ._probe import PLAIN, Access, broker_addresses, commit_log_end, hurry_registration, not_routed
from ._process import Group, ServerProcess
from ._server import Launch, Server

DEFAULT_VERSION: Final = "5.5.0"
OLD_VERSION: Final = "4.9.7"
"""The latest 4.x version whose jars are all in Maven. The tests run with this version and the current version."""
START_TIMEOUT: Final = 120.0
DISK_LIMIT: Final = 0.88
"""Used share of the disk above which no server is started, because a broker refuses messages from 90 % on
(``diskSpaceWarningLevelRatio`` of DefaultMessageStore)."""

_HURRY_INTERVAL = 0.5


def require(version: str = DEFAULT_VERSION) -> None:
    """Skip the running test, with a reason, if no cluster can be started. With RMQ_REQUIRE_CLUSTER=1, fail the test instead."""
    import pytest

    reason = missing(version)
    if reason and os.environ.get("RMQ_REQUIRE_CLUSTER") == "1":
        pytest.fail(f"RMQ_REQUIRE_CLUSTER=1, but {reason}", pytrace=False)
    if reason:
        pytest.skip(f"real RocketMQ {version}: {reason}")


class ExternalCluster:
    """A cluster that was started elsewhere. Its servers cannot be controlled.

    It has the lists ``nameservers``, ``brokers`` and ``replicas`` of a RealCluster. ``start`` fills ``brokers`` with the
    masters.

    Args:
        namesrv: The addresses of the cluster's name servers, joined by ";" or ",".
    """

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        addresses = [address.strip() for address in namesrv.replace(",", ";").split(";") if address.strip()]
        self.nameservers = [Server(f"namesrv-{number}", address) for number, address in enumerate(addresses)]
        self.brokers: list[Server] = []
        self.replicas: list[Server] = []
        """Always empty: replicas are used only through their controls, which an external cluster does not have."""

    async def start(self) -> None:
        """Read the brokers from the first name server that lists at least one broker.

        Raises:
            ClusterError: If no name server lists a broker.
            ValueError: For an address without a port.
        """
        for server in self.nameservers:
            if found := await broker_addresses(server.address):
                self.brokers = [Server(name, address) for name, address in sorted(found.items())]
                return
        raise ClusterError(
            f"no name server of NAMESRV_ADDR={self.namesrv} lists a broker; start the cluster there, without TLS"
        )

    async def stop(self) -> None:
        """Do nothing, because the cluster keeps running."""


class RealCluster(Startable):
    """The name servers and brokers of one cluster, as child processes of this process.

    The attributes ``nameservers``, ``brokers`` and ``replicas`` are lists that ``start`` fills. Replicas are in the order of
    their brokers, and ``broker-a-1`` is the first replica of broker-a.

    Args:
        brokers: Number of masters, 0 or more.
        nameservers: Number of name servers, 1 or more.
        replicas: Number of replicas of each broker. They replicate asynchronously.
        profile: "correctness" (long limits), "stock" (the servers' defaults), the name of a feature that is added to
            "correctness" ("auth", "authorization", "transactions", "recall", "trace", "go-away", "tls", "mutual-tls"), or a
            custom Profile. Servers ignore keys that their version does not know.
        version: "5.5.0" or "4.9.7". Other versions are untested.
        small: Whether servers have small heaps. Use False for benchmarks.
        broker_conf: Further keys of the brokers' configuration files. They override the profile's keys.
        namesrv_conf: The same for name servers.
        directory: The directory for all files, a str or Path. The files remain after ``stop``, and an existing store in the
            directory is used. The default is a temporary directory, which is deleted.

    Raises:
        ClusterError: For a number out of range and for an unknown profile.
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
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        if brokers < 0 or nameservers < 1 or replicas < 0:
            raise ClusterError(
                "nameservers must be at least 1, brokers and replicas at least 0, not "
                f"nameservers={nameservers}, brokers={brokers}, replicas={replicas}"
            )
        if isinstance(profile, str) and profile not in PROFILES:
            raise ClusterError(f"profile {profile!r} is unknown; choose one of {', '.join(PROFILES)}")
        self.version = version
        self.profile = PROFILES[profile] if isinstance(profile, str) else profile
        self.nameservers: list[Server] = []
        self.brokers: list[Server] = []
        self.replicas: list[Server] = []
        self._counts = (nameservers, brokers, replicas)
        self._small = small
        self._broker_conf = {**self.profile.broker, **(broker_conf or {})}
        self._namesrv_conf = {**self.profile.name_server, **(namesrv_conf or {})}
        self._given_directory = None if directory is None else Path(directory)
        self._certificates: Certificates | None = None
        self._access = PLAIN
        self._root: Path | None = None
        self._group: Group | None = None
        self._owner = 0
        self._class_data: dict[str, ClassData] = {}

    @property
    def namesrv(self) -> str:
        """The addresses of the name servers in the form that clients take, joined by ";".

        Raises:
            ClusterError: Before ``start``.
        """
        if not self.nameservers:
            raise ClusterError("the cluster has not been started; await start() first")
        return ";".join(server.address for server in self.nameservers)

    @property
    def credentials(self) -> Credentials | None:
        """Credentials of a user with all permissions. None if the profile has no users."""
        return self.profile.credentials

    @property
    def certificates(self) -> Certificates:
        """The cluster's certificates.

        Raises:
            ClusterError: Before ``start``, and if the profile does not use TLS.
        """
        if self._certificates is None:
            reason = "start it first" if self.profile.tls else 'its profile has no TLS; choose "tls" or "mutual-tls"'
            raise ClusterError(f"the cluster has no certificates: {reason}")
        return self._certificates

    @property
    def servers(self) -> list[Server]:
        """All name servers, brokers and replicas."""
        return [*self.nameservers, *self.brokers, *self.replicas]

    async def start(self, timeout: float = START_TIMEOUT) -> None:
        """Start all servers. Return when every name server routes to every broker.

        If the start fails or is cancelled, clean up.

        The first start on a machine makes Maven download the jars, which may take minutes, and then makes the servers dump
        their loaded classes. ``timeout`` (seconds) does not include these two steps.

        Raises:
            ClusterError: If the cluster is already running; if Java, Maven or (for TLS) the package trustme is missing; if the
                version is malformed or its jars cannot be downloaded or stored; if the disk is too full or no ports are free;
                or if a server ends or is not ready in time. In the last case, the message contains the end of the server's log.
        """
        if self._group is not None:
            raise ClusterError("the cluster has been started already; stop() it first")
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
        """Kill all servers with SIGKILL and delete a temporary directory. Do nothing if the cluster is not running."""
        await asyncio.to_thread(self._end)

    async def heal(self, timeout: float = START_TIMEOUT) -> None:
        """Resume paused servers and start stopped servers. Return when every name server routes to every broker.

        Raises:
            ClusterError: After ``timeout`` seconds, if a server ends, and if the cluster was stopped.
        """
        deadline = time.monotonic() + timeout
        for server in self.servers:
            if server.paused:
                server.resume()
            if not server.running:
                server.spawn()
        await self._until_up(deadline)

    async def move(self, broker: Server) -> None:
        """Kill a broker and start it with its store on another port, like a container that was rescheduled.

        On return, ``broker`` has the new address, and every name server that is running and not paused routes to it.

        Raises:
            ClusterError: If ``Server.start`` raises it, and if no ports are free.
        """
        await broker.kill()
        (port,) = find_ports([BROKER_OFFSETS])
        broker.relocate(f"127.0.0.1:{port}", {"listenPort": str(port)})
        await broker.start()

    async def replicated(self, timeout: float = 60.0) -> None:
        """Wait until the commit log of each replica has reached the end that its master's commit log had at the call. Masters
        and replicas must be running.

        A replica connects about 5 s after its start. It copies the settings of topics within a minute (5.5.0) and refuses pulls
        of a new topic until then.

        Raises:
            ClusterError: After ``timeout`` seconds, and if a server has ended before it responded.
        """
        deadline = time.monotonic() + timeout
        ends = [await self._log_end(broker, deadline) for broker in self.brokers]
        for number, replica in enumerate(self.replicas):
            wanted = ends[number // self._counts[2]]
            while (copied := await self._log_end(replica, deadline)) < wanted:
                if time.monotonic() >= deadline:
                    raise ClusterError(
                        f"{replica.name} has copied {copied} of {wanted} bytes after {timeout:g} s; give a longer timeout\n"
                        f"{replica.log_tail()}"
                    )
                await asyncio.sleep(0.05)

    def cpu_seconds(self, server: Server) -> float:
        """Return the CPU time of one server in seconds, as ``Server.cpu_seconds`` does."""
        return server.cpu_seconds()

    def _lay_out(self, class_path: str) -> None:
        """Create the directory, process group, ports and Server objects. Do not start servers."""
        given = self._given_directory
        if given is not None:
            given.mkdir(parents=True, exist_ok=True)
        _check_disk(given or Path(tempfile.gettempdir()))
        self._owner = os.getpid()
        atexit.register(self._end)
        self._root = (given or Path(tempfile.mkdtemp(prefix="rmq-cluster-"))).resolve()
        self._group = Group(self._root if given is None else None)
        self._certificates = Certificates.make(self._root / "certificates") if self.profile.tls else None
        made = self._certificates
        tls = None if made is None else made.context(client=self.profile.client_certificate)
        self._access = Access(tls, self.profile.credentials)
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
            # A replica learns its master's HA address at a registration. 5.5.0 ignores a configured ``haMasterAddress``.
            keys |= {"brokerId": str(which), "brokerRole": "SLAVE"}
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

        def prepare(moved: Mapping[str, str]) -> ServerProcess:
            if self._group is None:
                raise ClusterError(f"{name} cannot be started: its cluster has been stopped; start the cluster")
            write_configuration(directory, {**keys, **moved}, version=self.version)
            log = directory / "output.log"
            return ServerProcess(command, directory=directory, environment=environment, group=self._group.id, log=log)

        return Server(name, f"127.0.0.1:{port}", Launch(directory, prepare, self._until_serving))

    async def _keep_class_data(self) -> None:
        for main_class, servers in ((NAME_SERVER_CLASS, self.nameservers), (BROKER_CLASS, self.brokers)):
            if servers and (data := self._class_data[main_class]).wanted:
                await asyncio.to_thread(data.write, servers[0].pid)

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
        """Wait until the name servers route to a restarted broker, or a restarted name server routes to the brokers.

        Servers that are paused or down do not count.
        """
        if server not in self.nameservers:
            nameservers = [each for each in self.nameservers if each.running and not each.paused]
            await self._until_routed(nameservers, [server], deadline)
            await self._introduce([server] if server in self.replicas else [])
        else:
            brokers = [each for each in (*self.brokers, *self.replicas) if each.running and not each.paused]
            await self._until_routed([server], brokers, deadline)

    async def _introduce(self, replicas: Sequence[Server]) -> None:
        """Make replicas register again. A replica learns its master's address at a registration, and may have registered before
        its master.
        """
        await asyncio.gather(*(hurry_registration(replica.address, self._access) for replica in replicas))

    async def _log_end(self, broker: Server, deadline: float) -> int:
        while (end := await commit_log_end(broker.address, self._access)) is None:
            broker.check_alive()
            if time.monotonic() >= deadline:
                raise ClusterError(
                    f"{broker.name} did not report the end of its commit log in time; give a longer timeout\n{broker.log_tail()}"
                )
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
                names = ", ".join(broker.name for broker in late)
                raise ClusterError(f"not every name server routes to {names} in time; give a longer timeout\n{tails}")
            if now >= hurry_at:
                hurry_at = now + _HURRY_INTERVAL
                await asyncio.gather(*(hurry_registration(broker.address, self._access) for broker in late))
            await asyncio.sleep(0.1)

    def _end(self) -> None:
        """Kill the servers and clean up, once. Do nothing in a forked child, because the cluster belongs to the parent."""
        if self._owner != os.getpid():
            return
        atexit.unregister(self._end)
        group, self._group = self._group, None
        root, self._root = self._root, None
        if group is not None:
            group.kill()
            for server in self.servers:
                server._reap()  # noqa: SLF001 - this module's class
        if root is not None and self._given_directory is None:
            shutil.rmtree(root, ignore_errors=True)


def _check_disk(directory: Path) -> None:
    usage = shutil.disk_usage(directory)
    share = usage.used / (usage.used + usage.free)
    if share > DISK_LIMIT:
        raise ClusterError(
            f"the disk of {directory} is {share:.0%} full; above {DISK_LIMIT:.0%} no broker is started "
            "(at 90 % it would refuse messages); free some space, or give another directory"
        )
