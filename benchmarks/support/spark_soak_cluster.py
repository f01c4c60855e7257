"""A standalone cluster of Spark as processes of this machine, whose workers and executors can be killed and are replaced.

A master and workers of one core each, from pyspark's jars. Worker n is on 127.0.0.n: Spark runs the second attempt of a slow task
only on another host, and with one address for all there is none (macOS has no such addresses by default). All of them and their
executors are in one process group, which is killed at the end, also when this process is gone.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil

from rmq_async.testing._jars import find_java
from rmq_async.testing._ports import find_ports
from rmq_async.testing._process import Group

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"
JAVA_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dspark.master.rest.enabled=false",
    "-Dspark.worker.cleanup.enabled=false",
)
START_TIMEOUT = 240.0


@dataclass
class Worker:
    """``number``: from 1 on, also the last part of its address. ``started``: how often."""

    number: int
    process: subprocess.Popen[bytes]
    started: int = 1

    @property
    def host(self) -> str:
        return host_of(self.number)


def host_of(number: int) -> str:
    return f"127.0.0.{number}"


class SparkCluster:
    """A master and its workers. ``directory``: takes logs and the files of executors. ``memory``: of each worker."""

    def __init__(self, directory: Path, *, workers: int = 2, memory: str = "1g") -> None:
        self.directory = directory
        self.workers: list[Worker] = []
        self._count = workers
        self._memory = memory
        self._port, self._ui = find_ports([(0,), (0,)])
        self._group: Group | None = None
        self._master: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"spark://{host_of(1)}:{self._port}"

    @property
    def group(self) -> int:
        """Id of the process group, for programs that are to end with the cluster."""
        assert self._group is not None, "the cluster has not been started; start() it first"
        return self._group.id

    def start(self) -> None:
        """Returns when all workers have registered. Raises RuntimeError, with what the master or a worker wrote last."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._group = Group(None)
        try:
            ports = ("--port", str(self._port), "--webui-port", str(self._ui))
            self._master = self._java("master", 1, MASTER, "--host", host_of(1), *ports)
            self.wait(lambda: self.state()["status"] == "ALIVE", "the master did not start")
            self.workers = [Worker(number, self._start_worker(number)) for number in range(1, self._count + 1)]
            self.wait(lambda: self.alive() == self._count, f"not all of the {self._count} workers registered")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kills all processes, and returns when they are gone: those of Python, too, which leave the group."""
        if self._group is None:
            return
        processes = [self._master, *(worker.process for worker in self.workers)]
        there = [each for process in processes if process is not None for each in descendants(process.pid)]
        self._group.kill()
        self._group = None
        for process in processes:
            if process is not None:
                process.wait(30)
        _, left = psutil.wait_procs(there, timeout=10)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)

    def state(self) -> dict[str, Any]:
        """The master's own account; "status" is "" while it does not answer."""
        try:
            with urlopen(f"http://{host_of(1)}:{self._ui}/json/", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return {"status": "", "workers": []}

    def alive(self) -> int:
        """Number of the workers that the master counts on."""
        return sum(worker["state"] == "ALIVE" for worker in self.state()["workers"])

    def executors(self) -> list[psutil.Process]:
        """JVMs of executors that run or are stopped, the oldest first; not those whose worker is gone."""
        found = [each for worker in self.workers for each in descendants(worker.process.pid) if _is_executor(each)]
        return sorted(found, key=lambda process: process.create_time())

    def kill_worker(self, worker: Worker) -> int:
        """SIGKILL; its executors end by themselves when they see it. Returns its pid."""
        worker.process.kill()
        worker.process.wait(30)
        return worker.process.pid

    def restart_worker(self, worker: Worker) -> None:
        worker.started += 1
        worker.process = self._start_worker(worker.number)

    def wait(self, condition: Callable[[], bool], failure: str, timeout: float = START_TIMEOUT) -> None:
        """Raises RuntimeError when the master has ended or the time is over."""
        deadline = time.monotonic() + timeout
        while not condition():
            ended = self._master is not None and self._master.poll() is not None
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"{failure} in {timeout:g} s{', the master has ended' if ended else ''}\n{self._logs()}")
            time.sleep(0.1)

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        where = ("--host", host_of(number), "--webui-port", "0", "--work-dir", str(self.directory / f"worker-{number}"))
        return self._java(f"worker-{number}", number, WORKER, *where, "--cores", "1", "--memory", self._memory, self.url)

    def _java(self, name: str, number: int, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        spark, java = find_spec("pyspark"), find_java()
        if spark is None or spark.origin is None or java is None:
            raise RuntimeError("pyspark or Java 17 is missing; install rmq-async[spark] and a JDK")
        home = Path(spark.origin).parent
        (core,) = (home / "jars").glob("spark-core_*.jar")
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": core.name.removeprefix("spark-core_").partition("-")[0],  # without it no executor starts
            "SPARK_LOCAL_IP": host_of(number),  # its pages and its executors listen on this address only
            "SPARK_LOCAL_DIRS": str(self.directory / f"local-{number}"),
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [java, "-Xmx256m", *JAVA_OPTIONS, "-cp", f"{home / 'jars'}{os.sep}*", main, *arguments]
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                process_group=self.group,
            )  # fmt: skip

    def _logs(self) -> str:
        ends = [f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(self.directory.glob("*.log"))]
        return "\n".join(ends)


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any(EXECUTOR in word for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Faults:
    """The faults of a soak, drawn from ``rng``; each returns what it did, to be written down."""

    DECK = ("kill executor", "stop executor", "kill worker", "kill worker", "stop executor", "kill executor", "kill worker")
    """Of each seven, in an order that is drawn anew."""

    def __init__(self, cluster: SparkCluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.deck: list[str] = []

    def next(self) -> dict[str, Any]:
        """Does the next one, and returns when it is over: a worker started again, an executor resumed. ``hit``: False when there
        was no executor to be hit."""
        if not self.deck:
            self.deck = self.rng.sample(self.DECK, len(self.DECK))
        what = self.deck.pop()
        if what == "kill worker":
            worker = self.rng.choice(self.cluster.workers)
            pid = self.cluster.kill_worker(worker)
            time.sleep(self.rng.uniform(0.0, 3.0))
            self.cluster.restart_worker(worker)
            return {"what": what, "hit": True, "pid": pid, "host": worker.host}
        there = self.cluster.executors()
        if not there:
            return {"what": what, "hit": False}
        chosen = self.rng.choice(there)
        try:
            if what == "kill executor":
                chosen.kill()
                return {"what": what, "hit": True, "pid": chosen.pid}
            seconds = self.rng.uniform(2.0, 8.0)
            chosen.suspend()
            time.sleep(seconds)
            chosen.resume()
        except psutil.NoSuchProcess:
            return {"what": what, "hit": False}
        return {"what": what, "hit": True, "pid": chosen.pid, "seconds": round(seconds, 1)}
