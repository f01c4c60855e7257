"""Sides of a benchmark that are programs of their own: the client of another checkout, and Java's, built by Maven."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from support.clusters import BenchmarkError

__all__ = ["Side", "check_checkout", "environment_of", "java_program"]

JAVA: Final = Path(__file__).resolve().parents[1] / "peers" / "java_consume"
BUILD_LIMIT: Final = 600.0


class Side(NamedTuple):
    """``command``: the program and its arguments before those of a run. ``environment``: beside that of this process."""

    command: list[str]
    environment: Mapping[str, str]


def environment_of(checkout: Path) -> dict[str, str]:
    """Returns the environment in which Python imports the packages of ``checkout``."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "protocol")])}


def check_checkout(checkout: Path) -> None:
    """Raises BenchmarkError unless Python imports the package from ``checkout``."""
    code = "import rmq_async, rmq_protocol; print(rmq_async.__file__, rmq_protocol.__file__)"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment_of(checkout), capture_output=True, text=True, check=False
    )
    files = [Path(each).resolve() for each in run.stdout.split()]
    if run.returncode or len(files) != 2 or not all(each.is_relative_to(checkout) for each in files):
        raise BenchmarkError(f"{checkout}: is no checkout of rmq-async: {run.stdout.strip() or run.stderr.strip()[-200:]}")


def java_program(name: str) -> list[str]:
    """Builds the programs with the official client; returns the command that starts the one of this name."""
    listed = JAVA / "build" / "classpath.txt"
    goals = ("-q", "-B", "compile", "dependency:build-classpath", f"-Dmdep.outputFile={listed}")
    _run([os.environ.get("MAVEN", "mvn"), *goals], JAVA)
    classpath = os.pathsep.join((str(JAVA / "build" / "classes"), listed.read_text().strip()))
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    return [java, "-Drocketmq.client.logUseSlf4j=true", "-cp", classpath, name]


def _run(command: list[str], directory: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=BUILD_LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(str(error)) from error
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
        raise BenchmarkError(next((line for line in said if "ERROR" in line.upper()), said[-1])[:300])
