"""Class-data archives of the servers, kept beside their jars: a server spends much of its start on loading and linking classes.

A running JVM of 17 or later dumps its loaded classes to an archive (``jcmd``, so only with a JDK, not a JRE), and later JVMs map
that file. The first cluster on a machine makes its servers dump theirs, which takes some 3 s. A file's name has a digest of the
main class, of Java and of the jars. The JVM checks them too, and ignores an archive that does not match.

Measured, interleaved, medians of 6, while servers still made certificates at each start: a name server and a broker of 5.5.0 are up
in 4.6 s instead of 5.8 s, for 7.5 s of CPU instead of 9.8 s.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ._jars import java_major

__all__ = ["ClassData"]

logger = logging.getLogger(__name__)

FIRST_JAVA: Final = 17
WRITE_TIMEOUT: Final = 60.0


class ClassData:
    """The archive for servers of one main class, one class path and one Java."""

    def __init__(self, java: str, main_class: str, class_path: str) -> None:
        self._jcmd = Path(java).resolve().with_name("jcmd")
        self._able = java_major(java) >= FIRST_JAVA and self._jcmd.exists()
        jars = class_path.split(os.pathsep)
        known = [str(_identity(Path(name))) for name in (java, *jars)]
        digest = hashlib.sha256("\n".join([main_class, *known]).encode()).hexdigest()[:16]
        self._file = Path(jars[0]).parent / f"{main_class.rpartition('.')[2]}-{digest}.jsa"

    @property
    def wanted(self) -> bool:
        """Whether this Java can dump an archive, and no file is there yet: after a dump that failed there is an empty one."""
        return self._able and not self._file.exists()

    def options(self) -> tuple[str, ...]:
        """Returns the JVM options that use the archive, or that enable a later ``write``; empty if neither is possible."""
        if self.wanted:
            return ("-XX:+RecordDynamicDumpInfo",)
        return (f"-XX:SharedArchiveFile={self._file}",) if self._able and self._file.stat().st_size else ()

    def write(self, pid: int) -> None:
        """Makes the server with this pid dump its classes; the server stands still meanwhile. Does nothing if there is an archive,
        or while another process makes one. Failures are logged; after a dump that ``jcmd`` could not make, none is tried again."""
        try:
            with _alone(self._file.with_suffix(".lock")) as alone:
                if alone and self.wanted:
                    self._write(pid)
        except OSError as error:
            logger.info("class data of a server are not kept: %s", error)

    def _write(self, pid: int) -> None:
        with tempfile.TemporaryDirectory(dir=self._file.parent) as place:
            made = Path(place, self._file.name)
            command = [str(self._jcmd), "-J-XX:-UsePerfData", str(pid), "VM.cds", "dynamic_dump", str(made)]
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=WRITE_TIMEOUT, check=False)  # noqa: S603
                said = run.stdout + run.stderr
            except subprocess.TimeoutExpired as error:
                said = str(error)
            if not made.exists():
                logger.info("class data of a server are not kept: %s", said.strip()[-500:])
                made.touch()
            made.replace(self._file)
            with suppress(OSError):  # the socket of jcmd, which remains after a SIGKILL of the server
                Path(f"/tmp/.java_pid{pid}").unlink()  # noqa: S108 - fixed by the JVM


def _identity(file: Path) -> tuple[str, int, int]:
    status = file.stat()
    return str(file.resolve()), status.st_size, status.st_mtime_ns


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Locks the file; yields False where another process holds the lock."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
