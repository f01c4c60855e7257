"""mqadmin of 5.5.0 on members of a group: what it shows of them, and what it makes them do."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rmq_async import Admin, Consumer, Message, MessageExt, Producer
from rmq_async.testing.cluster import RealCluster

from ..consumer.group.support import until
from ..support.java.program import require_javac, started


class Tools:
    """mqadmin, all commands in one JVM."""

    def __init__(self, process: asyncio.subprocess.Process, namesrv: str) -> None:
        self._process = process
        self._namesrv = namesrv

    async def run(self, command: str, *arguments: str) -> str:
        """Returns what the command prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join((command, "-n", self._namesrv, *arguments)).encode() + b"\n")
        lines: list[str] = []
        async with asyncio.timeout(60.0):
            while (line := (await self._process.stdout.readline()).decode().rstrip()) != "done":
                assert not self._process.stdout.at_eof(), lines
                lines.append(line)
        text = "\n".join(lines)
        print(command, *arguments, text, sep="\n")
        return text


@asynccontextmanager
async def mqadmin(namesrv: str, home: Path) -> AsyncIterator[Tools]:
    async with started(home, "Tools") as process:
        assert process.stderr is not None
        log = asyncio.create_task(process.stderr.read())
        try:
            yield Tools(process, namesrv)
        finally:
            process.kill()
            await log


async def test_mqadmin_reads_and_steers_a_member(cluster: RealCluster, tmp_path: Path) -> None:
    require_javac()
    topic = group = f"Tools_{uuid.uuid4().hex}"
    handled: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        handled.append(message.body)

    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=2)
    consumer = Consumer(group, namesrv=cluster.namesrv, instance_name="tools", start_from="earliest", commit_interval=0.2)
    consumer.subscribe(topic, handle, tags="paid || sent")
    async with mqadmin(cluster.namesrv, tmp_path) as tools, consumer, Producer("p", namesrv=cluster.namesrv) as producer:
        sent = [await producer.send(Message(topic, b"%d" % number, tags="paid")) for number in range(6)]
        await until(lambda: len(handled) == 6)
        await consumer.commit()

        connection = await tools.run("consumerConnection", "-g", group)
        (client_id,) = [line.split()[0] for line in connection.splitlines() if "PYTHON" in line]
        assert client_id.endswith("@tools")
        assert f"{topic} paid || sent" in connection
        assert "ConsumeType: CONSUME_PASSIVELY" in connection
        assert "MessageModel: CLUSTERING" in connection

        status = await tools.run("consumerStatus", "-g", group, "-i", client_id)
        assert "#Consumer Subscription#" in status
        assert topic in status
        progress = await tools.run("consumerProgress", "-g", group)
        assert "Consume Diff Total: 0" in progress
        assert sum(line.startswith(topic) for line in progress.splitlines()) == 2

        directly = await tools.run("queryMsgByUniqueKey", "-t", topic, "-i", sent[0].msg_id, "-g", group, "-d", client_id)
        assert "CR_SUCCESS" in directly
        assert handled.count(b"0") == 2

        reset = await tools.run("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        assert topic in reset
        for _ in range(2):  # else the pulls that the broker holds end after 15 s
            await producer.send(Message(topic, b"wakes a pull", tags="sent"))
        await until(lambda: all(handled.count(b"%d" % number) >= 2 for number in range(6)))
