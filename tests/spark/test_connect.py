"""Spark Connect, whose client has no JVM, with a server on a cluster of processes (``local-cluster``)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")

HERE = Path(__file__).parent


@contextmanager
def connect_server(place: Path) -> Iterator[str]:
    """Provides the URL of a server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(HERE / "connect_server.py"), str(place), str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert "ready\n" in server.stdout, server.communicate()[1]
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.communicate("", timeout=60)
            assert server.returncode == 0


def test_format_and_pipelines_work_over_spark_connect(spark: SparkSession, embedded_topics: Topics, tmp_path: Path) -> None:
    """``spark``: for its checks of what is installed."""
    for name in ("Written", "Published"):
        embedded_topics.make(2, name)
    with connect_server(tmp_path) as url:
        command = [sys.executable, str(HERE / "connect_client.py"), url, embedded_topics.namesrv, str(tmp_path)]
        client = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert client.returncode == 0, client.stderr
    said: dict[str, Any] = {}
    for line in client.stdout.splitlines():
        said |= json.loads(line)
    assert said["written"] == sorted(str(number) for number in range(40))
    assert said["streamed"] == 40
    assert "unknown option 'topik'; is topic meant?" in said["error"]
    assert (said["published"], said["arrived"]) == (40, 40)
    assert "this session is one of Spark Connect" in said["refused"]
