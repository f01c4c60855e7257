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

from rmq_async import Message, Producer

from .conftest import Topics
from .test_dlq_replay import bury

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


async def send(namesrv: str, topic: str, count: int) -> None:
    async with Producer("connects", namesrv=namesrv) as producer:
        for number in range(count):
            await producer.send(Message(topic, b"dead %d" % number))


def test_format_and_pipelines_work_over_spark_connect(spark: SparkSession, embedded_topics: Topics, tmp_path: Path) -> None:
    """``spark``: for its checks of what is installed."""
    loop, namesrv = embedded_topics.loop, embedded_topics.namesrv
    for name in ("Written", "Published", "Loaded", "Failed"):
        embedded_topics.make(4, name)
    loop.run(send(namesrv, "Failed", 5))
    bury(embedded_topics, "connects", embedded_topics.read("Failed"))
    with connect_server(tmp_path) as url:
        command = [sys.executable, str(HERE / "connect_client.py"), url, namesrv, str(tmp_path), "connects"]
        client = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert client.returncode == 0, client.stderr
    said: dict[str, Any] = {}
    for line in client.stdout.splitlines():
        said |= json.loads(line)
    assert said["written"] == sorted(str(number) for number in range(40))
    assert said["streamed"] == 40
    assert "unknown option topik; is topic meant?" in said["error"]
    assert (said["published"], said["arrived"]) == (40, 40)
    assert said["attempted"] == said["acknowledged"] > 0
    assert said["lost"] == 0
    assert (said["found"], said["replayed"]) == (5, 5)
    assert len(embedded_topics.read("Failed")) == 10
    assert "this is one of Spark Connect" in said["refused"]
