"""The other clients that ``compare.py`` runs: what each can do, how it is built, how it is started.

Each is built by its own package manager, with that manager's own settings (nothing here names a registry), from the manifest and
the small program under ``peers/``, in a directory outside the repository. A build that is there already is used again when it
was made from the same files. What cannot be built is left out with the reason, without the addresses and paths of the machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

__all__ = [
    "CLASS_PATH",
    "CONTENDERS",
    "PEERS",
    "SECTIONS",
    "Built",
    "Peer",
    "PeerMode",
    "build",
    "peer_environment",
    "without_places",
]

SOURCES: Final = Path(__file__).resolve().parents[1] / "peers"
BUILD_LIMIT: Final = 900.0
CLASS_PATH: Final = "classpath.txt"
JAVA_OPTIONS: Final = ("-Xms256m", "-Xmx512m", "-XX:-UsePerfData", "-Drocketmq.log.level=off")
"""A moderate heap and otherwise what the JVM chooses; its logs are off, as are those of all peers."""


class BuildError(Exception):
    """Why a peer cannot be built."""


class PeerMode(NamedTuple):
    """``weight``: its share of the bytes that a whole comparison may write. ``awaited``: each caller waits for its result."""

    title: str
    weight: int
    awaited: bool = False


class Peer(NamedTuple):
    """``warm_up``: seconds at least, before the window. ``through_proxy``: it speaks to the RocketMQ proxy, not to the broker."""

    title: str
    version: str
    modes: Mapping[str, PeerMode]
    make: Callable[[Path], list[str]]
    warm_up: float = 0.0
    through_proxy: bool = False


class Built(NamedTuple):
    """``command``: what runs it, without the specification; None where it cannot be built, for ``reason``."""

    command: list[str] | None
    reason: str = ""
    seconds: float = 0.0


# -- builds: each gets its own directory, with its sources, and returns the command


def _java(directory: Path) -> list[str]:
    for tool in ("mvn", "javac", "java"):
        _need(tool)
    class_path = os.pathsep.join([str(directory / "classes"), _class_path(directory)])
    _run(["javac", "-cp", class_path, "-d", "classes", "Peer.java"], directory)
    return ["java", *JAVA_OPTIONS, "-cp", class_path, "Peer"]


def _class_path(directory: Path) -> str:
    """Of what the pom.xml there names; kept in a file beside it."""
    output = directory / CLASS_PATH
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={output}", "-DincludeScope=runtime"]
    _run(["mvn", "-q", "-B", "-f", "pom.xml", *goal], directory)
    return output.read_text().strip()


def _go(directory: Path) -> list[str]:
    _need("go")
    _run(["go", "build", "-o", "peer", "."], directory)
    return [str(directory / "peer")]


def _node(directory: Path) -> list[str]:
    for tool in ("npm", "node"):
        _need(tool)
    _run(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"], directory)
    return ["node", str(directory / "peer.js")]


def _python(directory: Path) -> list[str]:
    python = directory / "venv" / "bin" / "python"
    _run([sys.executable, "-m", "venv", "--clear", "venv"], directory)
    _run([str(python), "-m", "pip", "install", "-q", "-r", "requirements.txt"], directory)
    return [str(python), str(directory / "peer.py")]


def _python_and_proxy(directory: Path) -> list[str]:
    for tool in ("mvn", "java"):
        _need(tool)
    _class_path(directory)
    return _python(directory)


def _need(tool: str) -> None:
    if shutil.which(tool) is None:
        raise BuildError(f"no {tool} in PATH")


def _run(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_LIMIT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{Path(command[0]).name} did not end within {BUILD_LIMIT:.0f} s") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        said = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "nothing said")
        raise BuildError(f"{Path(command[0]).name} ended with exit code {done.returncode}: {without_places(said)[:300]}")


def without_places(text: str) -> str:
    """Without addresses and absolute paths, which belong to one machine."""
    text = re.sub(r"\w+://[^\s'\"),]+", "ADDRESS", text)
    return re.sub(r"(?<![\w.])/[\w.+@-]+(?:/[\w.+@-]+)+/?", "PATH", text)


PEERS: Final[Mapping[str, Peer]] = {
    "java": Peer(
        "Java client",
        "5.5.0",
        {
            "sync-1": PeerMode("Java send, 1 thread", 1, awaited=True),
            "sync-64": PeerMode("Java send, 64 threads", 3, awaited=True),
            "async-64": PeerMode("Java send with callbacks, 64 in flight", 3),
            "autobatch-64": PeerMode("Java autoBatch, callbacks, 64 in flight", 3),
            "async-1024": PeerMode("Java send with callbacks, 1024 in flight", 4),
            "autobatch-1024": PeerMode("Java autoBatch, callbacks, 1024 in flight", 40),
            "batch-1": PeerMode("Java batches of 32, 1 thread", 12),
            "batch-8": PeerMode("Java batches of 32, 8 threads", 24),
            "production-sync-64": PeerMode("Java send of production messages, 64 threads", 3, awaited=True),
            "production-async-64": PeerMode("Java send of production messages with callbacks, 64 in flight", 3),
        },
        _java,
        warm_up=6.0,
    ),
    "go": Peer(
        "Go client rocketmq-client-go",
        "2.1.2",
        {
            "sync-1": PeerMode("Go SendSync, 1 goroutine", 1, awaited=True),
            "sync-64": PeerMode("Go SendSync, 64 goroutines", 2, awaited=True),
            "async-1024": PeerMode("Go SendAsync, 1024 in flight", 3),
            "batch-1": PeerMode("Go batches of 32, 1 goroutine", 10),
            "batch-8": PeerMode("Go batches of 32, 8 goroutines", 20),
        },
        _go,
    ),
    "node": Peer(
        "Node client ali-ons",
        "3.12.0",
        {
            "await-1": PeerMode("Node await send, 1 in flight", 1, awaited=True),
            "await-64": PeerMode("Node await send, 64 in flight", 3, awaited=True),
            "await-1024": PeerMode("Node await send, 1024 in flight", 4, awaited=True),
        },
        _node,
    ),
    "messense": Peer(
        "Python client rocketmq (C++)",
        "0.4.4",
        {
            "sync-1": PeerMode("Python/C++ send_sync, 1 thread", 1, awaited=True),
            "sync-16": PeerMode("Python/C++ send_sync, 16 threads", 2, awaited=True),
            "batch-1": PeerMode("Python/C++ batches of 32, 1 thread", 8),
        },
        _python,
    ),
    "grpc": Peer(
        "Python client rocketmq-python-client (gRPC)",
        "5.1.2",
        {
            "sync-1": PeerMode("Python/gRPC send, 1 thread, by proxy", 1, awaited=True),
            "async-64": PeerMode("Python/gRPC send_async, 64 in flight, by proxy", 1),
        },
        _python_and_proxy,
        warm_up=2.0,
        through_proxy=True,
    ),
}

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    # our modes that stand in one table
    "1 in flight": ("depth-1",),
    "64 in flight": ("depth-64", "async-64", "adaptive-64"),
    "1024 in flight": ("depth-1024", "async-1024", "adaptive-1024"),
    "batches of 32, one at a time": ("batch-1",),
    "batches of 32, eight at a time": ("batch-8",),
    "production messages: 1 KiB, tags, key, two properties, signed, broker with ACL; 64 in flight": ("production-64",),
}
CONTENDERS: Final[Mapping[str, tuple[str, ...]]] = {
    # our mode -> the modes of peers it is held against
    "depth-1": ("java:sync-1", "go:sync-1", "node:await-1", "messense:sync-1", "grpc:sync-1"),
    "depth-64": ("java:sync-64", "java:async-64", "go:sync-64", "node:await-64", "messense:sync-16", "grpc:async-64"),
    "async-64": ("java:async-64", "grpc:async-64"),
    "adaptive-64": ("java:sync-64", "java:async-64", "java:autobatch-64", "go:sync-64", "node:await-64"),
    "depth-1024": ("java:async-1024", "go:async-1024", "node:await-1024"),
    "async-1024": ("java:async-1024", "go:async-1024", "node:await-1024"),
    "adaptive-1024": ("java:async-1024", "java:autobatch-1024"),
    "batch-1": ("java:batch-1", "go:batch-1", "messense:batch-1"),
    "batch-8": ("java:batch-8", "go:batch-8"),
    "production-64": ("java:production-sync-64", "java:production-async-64"),
}


def build(name: str, place: Path) -> Built:
    """In ``place``/NAME, or as it is there already."""
    began = time.monotonic()
    directory = place / name
    stamp, wanted = directory / "built.txt", _fingerprint(name)
    try:
        if stamp.exists() and (lines := stamp.read_text().splitlines()) and lines[0] == wanted:
            return Built(lines[1:])
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(SOURCES / name, directory, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(SOURCES / "meter.py", place)
        command = PEERS[name].make(directory)
        stamp.write_text("\n".join([wanted, *command]))
        return Built(command, seconds=time.monotonic() - began)
    except BuildError as error:
        return Built(None, str(error))
    except OSError as error:
        return Built(None, without_places(str(error)))


def _fingerprint(name: str) -> str:
    files = sorted(path for path in (SOURCES / name).iterdir() if path.is_file())
    digest = hashlib.sha256(sys.version.encode())
    for file in [*files, SOURCES / "meter.py", Path(__file__)]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def peer_environment(home: Path) -> dict[str, str]:
    """Little: no proxies, no name server from outside, and logs that go where they are deleted."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    return {**kept, "LC_ALL": "C.UTF-8", "HOME": str(home), "GRPC_VERBOSITY": "NONE"}
