"""Jars of Spark's sinks, from Maven's local repository; Maven fetches what is not there.

Maven runs with its own settings. Jars that this machine cannot have are a reason, not an error: tests skip with it.
"""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from rmq_async.testing import ClusterError
from rmq_async.testing._jars import find_maven, run_maven

__all__ = ["DELTA", "POSTGRESQL", "NoJarsError", "copy_jars", "delta_jars", "delta_missing"]

POSTGRESQL: Final = ("org.postgresql:postgresql:42.7.8",)
_DELTA_VERSION: Final = "4.4.0"
DELTA: Final = tuple(
    f"io.delta:{name}:{_DELTA_VERSION}"
    for name in ("delta-spark_4.2_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults")
)
"""Those that a path in a file system needs: what they need in turn is among Spark's own jars."""
DELTA_SPARK: Final = "4.2"
_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>rmq-async.tests</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""
_DEPENDENCY: Final = """
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""
"""Without what it needs in turn, which for Delta is all of Spark and Hadoop."""


class NoJarsError(Exception):
    """There is no Maven, or it could not have the jars."""


def copy_jars(artifacts: tuple[str, ...], place: Path) -> list[Path]:
    """Returns copies of the jars, in ``place``. Raises NoJarsError, with the reason."""
    there = [_usual_place(artifact) for artifact in artifacts]
    if all(jar.is_file() for jar in there):  # else Maven takes four seconds of a processor to find that out
        return sorted(Path(shutil.copy2(jar, place)) for jar in there)
    maven = find_maven()
    if maven is None:
        raise NoJarsError("no Maven (mvn) in PATH; install it")
    pom = _POM.format("".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts))
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={place}"]
    try:
        run_maven(maven, goal, place, pom=pom, wanted=", ".join(artifacts))
    except ClusterError as error:
        raise NoJarsError(str(error)) from error
    return sorted(place.glob("*.jar"))


def _usual_place(artifact: str) -> Path:
    """Where Maven keeps a jar, unless its settings name another directory."""
    group, name, number = artifact.split(":")
    return Path.home().joinpath(".m2", "repository", *group.split("."), name, number, f"{name}-{number}.jar")


def delta_missing(pyspark: str | None = None) -> str:
    """Returns why Delta cannot be used with this PySpark, or an empty text. ``pyspark``: a version, that of the installed one."""
    if pyspark is None:
        try:
            pyspark = version("pyspark")
        except PackageNotFoundError:
            return "no pyspark"
    if not pyspark.startswith(f"{DELTA_SPARK}."):
        return f"{DELTA[0]} is for Spark {DELTA_SPARK}, and pyspark {pyspark} is installed; install pyspark=={DELTA_SPARK}.*"
    return ""


def delta_jars(place: Path) -> list[Path]:
    """Returns copies of Delta's jars, in ``place``. Raises NoJarsError, with the reason."""
    if reason := delta_missing():
        raise NoJarsError(reason)
    return copy_jars(DELTA, place)
