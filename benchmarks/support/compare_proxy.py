"""The official RocketMQ proxy 5.5.0 in cluster mode, for clients that speak gRPC.

It runs in a process group of its own, whose guard ends it with this process, and everything it writes goes into a directory that
is deleted. It listens on all interfaces in spite of its settings; clients are given 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rmq_async.testing._ports import find_ports, listens
from rmq_async.testing._process import Group, ServerProcess

__all__ = ["Proxy", "ProxyError", "running_proxy"]

START_LIMIT: Final = 90.0
OPTIONS: Final = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "-Xms256m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:-UsePerfData",
)


class ProxyError(Exception):
    """Why there is no proxy."""


class Proxy(NamedTuple):
    address: str
    pid: int


@contextmanager
def running_proxy(class_path: str, namesrv: str, cluster: str = "DefaultCluster") -> Iterator[Proxy]:
    """From when it takes connections until the end of the block. Raises ProxyError when it does not come up."""
    root = Path(tempfile.mkdtemp(prefix="rmq-proxy-")).resolve()
    (root / "tmp").mkdir()
    group = Group(root)
    process = None
    try:
        grpc, remoting = find_ports([(0,), (0,)])
        settings: dict[str, object] = {"rocketMQClusterName": cluster, "proxyClusterName": cluster, "namesrvAddr": namesrv}
        settings |= {"localServeAddr": "127.0.0.1", "grpcServerPort": grpc, "remotingListenPort": remoting}
        settings |= {"enablePrintJstack": False}
        (root / "proxy.json").write_text(json.dumps(settings))
        own = (f"-Duser.home={root}", f"-Djava.io.tmpdir={root / 'tmp'}")
        main = ("org.apache.rocketmq.proxy.ProxyStartup", "-pm", "cluster", "-n", namesrv, "-pc", str(root / "proxy.json"))
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(root), "RMQ_PROXY_HOME": str(root)}
        log = root / "output.log"
        command = ["java", *OPTIONS, *own, "-cp", class_path, *main]
        process = ServerProcess(command, directory=root, environment=environment, group=group.id, log=log)
        _until_open(process, grpc, log)
        yield Proxy(f"127.0.0.1:{grpc}", process.pid)
    finally:
        group.kill()
        if process is not None:
            process.reap()
        shutil.rmtree(root, ignore_errors=True)


def _until_open(process: ServerProcess, port: int, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while not listens(process.pid, port):
        if process.exit_code is not None or time.monotonic() > deadline:
            tail = " / ".join(log.read_text(errors="replace").splitlines()[-3:])
            raise ProxyError(f"the proxy did not open its port (exit code {process.exit_code}): {tail}")
        time.sleep(0.1)
