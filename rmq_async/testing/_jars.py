"""The jars of the official server. Maven resolves them once, and later starts read a list of files.

The first resolution downloads about 90 MB in 136 jars for 5.5.0, which took 19 s in a measurement. Later resolutions read one
small file. Several processes may resolve jars at the same time (parallel test runs). One of them holds a file lock and works in
a separate directory, which becomes visible by a single rename. A set with a missing jar is not used. Jars are hard links to
Maven's local repository if the file system allows it, and copies otherwise, so the set stays complete when that repository is
cleaned. Maven runs with its own defaults and settings, and this module names no registry.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from ._errors import ClusterError

MINIMUM_JAVA: Final = 11
MAVEN_TIMEOUT: Final = 900.0
_LIST: Final = "classpath.txt"

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>rmq-async.testing</groupId>
  <artifactId>cluster</artifactId>
  <version>{version}</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-namesrv</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-broker</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


_QUICK: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""JVM options of Maven, which runs only for seconds. The environment variable MAVEN_OPTS replaces them."""


def missing(version: str) -> str:
    """Return which requirement of a cluster of ``version`` (Java or Maven) is missing on this machine, and the remedy. Return
    an empty string if nothing is missing.

    Maven is not required once the jars are in the cache.
    """
    java = find_java()
    if java is None:
        return f"no Java: neither JAVA_HOME nor PATH has a java; install Java {MINIMUM_JAVA} or newer"
    found = java_major(java)
    if found < MINIMUM_JAVA:
        return (
            f"Java {MINIMUM_JAVA} or newer is needed, but {java} is {found or 'of an unknown version'}; "
            "set JAVA_HOME to a newer one"
        )
    if find_maven() is None and not _cached(_directory(version)):
        return f"no Maven (mvn) in PATH, and the jars of RocketMQ {version} are not in {_directory(version)}; install Maven"
    return ""


def find_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (java := shutil.which("java", path=str(Path(home) / "bin"))):
        return java
    return shutil.which("java")


def find_maven() -> str | None:
    return shutil.which("mvn")


def resolve(version: str) -> str:
    """Return the class path of name servers and brokers. Block while Maven downloads jars that are not in the cache.

    Raises:
        ClusterError: If the version is malformed, if the jars cannot be stored, or if Maven is missing, takes more than 15
            minutes or fails. If Maven fails, the message contains its last lines.
        OSError: If the parent of the jars' directory cannot be created or written to.
    """
    directory = _directory(version)
    if jars := _cached(directory):
        return os.pathsep.join(jars)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.with_name(f"{directory.name}.lock")):
        jars = _cached(directory) or _fetch(version, directory)
    return os.pathsep.join(jars)


@lru_cache(maxsize=4)
def java_major(java: str) -> int:
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(found[1]) if found else 0


def _directory(version: str) -> Path:
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ClusterError(f"version must have the form 5.5.0, not {version!r}")
    own = os.environ.get("RMQ_CLUSTER_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME")
    base = Path(own) if own else (Path(cache) if cache else Path.home() / ".cache") / "rmq-async"
    return base / f"rocketmq-{version}"


def _cached(directory: Path) -> list[str]:
    """Return the jars of a complete set, in Maven's order. Return no jars if the set does not exist or one of its files is
    missing.
    """
    try:
        names = (directory / _LIST).read_text().split("\n")
        jars = [directory / name for name in names if name]
        return [str(jar) for jar in jars] if all(jar.stat().st_size for jar in jars) else []
    except (OSError, UnicodeDecodeError):
        return []


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock the file. Without ``wait``, yield False if another process holds the lock."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _fetch(version: str, directory: Path) -> list[str]:
    work = Path(tempfile.mkdtemp(prefix=f"{directory.name}-", dir=directory.parent))
    try:
        names = []
        for number, jar in enumerate(_ask_maven(version, work)):
            names.append(f"{number:03}-{jar.name}")
            _link(jar, work / names[-1])
        (work / _LIST).write_text("\n".join(names))
        shutil.rmtree(directory, ignore_errors=True)
        work.rename(directory)
    except OSError as error:
        raise ClusterError(
            f"the jars of RocketMQ {version} cannot be stored in {directory}: {error}; make it "
            "writable and leave 100 MB free, or set RMQ_CLUSTER_CACHE to another directory"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return _cached(directory)


def _ask_maven(version: str, work: Path) -> list[Path]:
    maven = find_maven()
    if maven is None:
        raise ClusterError(missing(version))
    goal = ["dependency:build-classpath", "-Dmdep.outputFile=maven.txt", "-DincludeScope=runtime"]
    run_maven(maven, goal, work, pom=_POM.format(version=version), wanted=f"RocketMQ {version}")
    return [Path(jar) for jar in (work / "maven.txt").read_text().strip().split(os.pathsep)]


def run_maven(maven: str, goal: Sequence[str], work: Path, *, pom: str, wanted: str) -> None:
    """Run Maven in ``work`` with the project ``pom``, whose dependencies are ``wanted``.

    Raises:
        ClusterError: If Maven fails, or does not end within MAVEN_TIMEOUT.
    """
    (work / "pom.xml").write_text(pom)
    try:
        run = subprocess.run(  # noqa: S603
            [maven, "-q", "-B", "-f", "pom.xml", *goal],
            cwd=work,
            env={"MAVEN_OPTS": _QUICK, **os.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MAVEN_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"Maven did not resolve {wanted} within {MAVEN_TIMEOUT:.0f} s; check the network, and try again"
        ) from error
    if run.returncode:
        tail = "\n".join((run.stdout + run.stderr).strip().splitlines()[-15:])
        raise ClusterError(f"Maven could not resolve {wanted} (exit {run.returncode}); see its last lines:\n{tail}")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


# Class-data archives of the servers, which are stored next to the jars. Without them, a server spends much of its start on
# loading and linking classes.
#
# A running JVM of version 17 or later can dump its loaded classes to an archive, and JVMs that start later map that file. The
# dump uses ``jcmd``, so it needs a JDK, not only a JRE. The first cluster on a machine makes its servers dump their classes,
# which takes some seconds. The name of an archive contains a digest of the main class, of Java and of the jars. The JVM also
# checks these three and ignores an archive that does not match.
#
# Measured while servers still created certificates at each start (medians of 6, interleaved): a name server and a broker of
# 5.5.0 are up after 4.6 s instead of 5.8 s, and use 7.5 s of CPU instead of 9.8 s.
#
# A static archive also contains the JDK's classes, and classes that were loaded but not yet linked. With a static archive, a
# name server starts in 0.58 s of CPU and a broker in 0.99 s; with a dynamic archive, they start in 0.68 s and 1.11 s (medians
# of 5). To create a static archive, the JVM starts a second JVM and leaves the output of that JVM in its working directory.
# Static archives are therefore suitable only for programs with a separate working directory.

logger = logging.getLogger(__name__)

FIRST_JAVA: Final = 17
WRITE_TIMEOUT: Final = 120.0


class ClassData:
    """The class-data archive of the servers that have the same main class, class path and Java.

    Args:
        static: Whether the archive is static or dynamic. The comment above explains the difference.
    """

    def __init__(self, java: str, main_class: str, class_path: str, *, static: bool = True) -> None:
        self._jcmd = Path(java).resolve().with_name("jcmd")
        self._able = java_major(java) >= FIRST_JAVA and self._jcmd.exists()
        jars = class_path.split(os.pathsep)
        known = [str(_identity(Path(name))) for name in (java, *jars)]
        self._dump = "static_dump" if static else "dynamic_dump"
        digest = hashlib.sha256("\n".join([main_class, self._dump, *known]).encode()).hexdigest()[:16]
        self._file = Path(jars[0]).parent / f"{main_class.rpartition('.')[2]}-{digest}.jsa"

    @property
    def wanted(self) -> bool:
        """Whether this Java can dump an archive and the file does not exist yet. After a failed dump, the file exists and is
        empty.
        """
        return self._able and not self._file.exists()

    def options(self) -> tuple[str, ...]:
        """Return the JVM options that use the archive or that enable a later ``write``. Return no options if neither is
        possible.
        """
        if self.wanted:
            return ("-XX:+RecordDynamicDumpInfo",) if self._dump == "dynamic_dump" else ()
        return (f"-XX:SharedArchiveFile={self._file}",) if self._able and self._file.stat().st_size else ()

    def write(self, pid: int) -> None:
        """Make the server with this pid dump its classes. The server is suspended during the dump.

        Do nothing if the archive exists, or while another process creates it. Failures are logged. After ``jcmd`` has failed
        once, no further dump is tried.
        """
        try:
            with _locked(self._file.with_suffix(".lock"), wait=False) as alone:
                if alone and self.wanted:
                    self._write(pid)
        except OSError as error:
            logger.info("the class data of a server cannot be stored: %s", error)

    def _write(self, pid: int) -> None:
        with tempfile.TemporaryDirectory(dir=self._file.parent) as place:
            made = Path(place, self._file.name)
            command = [str(self._jcmd), "-J-XX:-UsePerfData", str(pid), "VM.cds", self._dump, str(made)]
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=WRITE_TIMEOUT, check=False)  # noqa: S603
                said = run.stdout + run.stderr
            except subprocess.TimeoutExpired as error:
                said = str(error)
            if not made.exists():
                logger.info("the class data of a server cannot be stored: %s", said.strip()[-500:])
                made.touch()
            made.replace(self._file)
            with suppress(OSError):  # the socket of jcmd, which remains after a SIGKILL of the server
                Path(f"/tmp/.java_pid{pid}").unlink()  # noqa: S108 - fixed by the JVM


def _identity(file: Path) -> tuple[str, int, int]:
    status = file.stat()
    return str(file.resolve()), status.st_size, status.st_mtime_ns
