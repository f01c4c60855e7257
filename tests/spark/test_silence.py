"""What a JVM writes while Spark starts: kept, within a bound, and shown only after a failure."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rmq_async.spark.pipelines.session import silent_start


def test_start_of_spark_is_silent_unless_it_fails(capfd: pytest.CaptureFixture[str]) -> None:
    """The JVM is a child that inherits stderr."""
    shout = [sys.executable, "-c", "import sys; print('WARN of a JVM', file=sys.stderr)"]
    with silent_start(True):
        subprocess.run(shout, check=True)
    assert capfd.readouterr().err == ""
    with silent_start(False):
        subprocess.run(shout, check=True)
    assert capfd.readouterr().err == "WARN of a JVM\n"
    with pytest.raises(OSError, match="no Java"), silent_start(True):
        subprocess.run(shout, check=True)
        raise OSError("no Java")
    assert capfd.readouterr().err == "WARN of a JVM\n"


def test_what_a_jvm_says_is_bounded(capfd: pytest.CaptureFixture[str]) -> None:
    shout = [
        sys.executable,
        "-c",
        "import os; [os.write(2, b'x' * 65536) for _ in range(64)]; os.write(1, b'!'); os.read(0, 1)",
    ]
    with silent_start(True):
        process = subprocess.Popen(shout, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"!"
        assert os.stat(f"/proc/{process.pid}/fd/2").st_size <= 65536
    with pytest.raises(OSError, match="no Java"), silent_start(True):
        subprocess.run(shout, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        raise OSError("no Java")
    said = capfd.readouterr().err
    assert said.startswith("xxx")
    assert said.endswith(f"\n... and {63 * 65536} more bytes\n")
    assert len(said) < 66_000
