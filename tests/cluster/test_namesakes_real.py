"""Two processes with one client id on real brokers, which list both and pass a request for the id on to one of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any
from uuid import uuid4

from rmq_async import Admin
from rmq_async.testing.cluster import RealCluster

MEMBER = """
import asyncio, json, sys
from rmq_async import Consumer, SubscriptionConflictError

async def main(namesrv, topic, on_conflict):
    member = Consumer(f"{topic}Group", namesrv=namesrv, instance_name="worker", client_ip="172.17.0.2", on_conflict=on_conflict)

    @member.handler(topic)
    async def handle(message): ...

    try:
        async with member:
            print("started", flush=True)
            async with asyncio.timeout(20):
                while on_conflict == "warn" and not member.health().problems:
                    await asyncio.sleep(0.1)
            print(json.dumps([problem.code for problem in member.health().problems]), flush=True)
            await asyncio.to_thread(sys.stdin.readline)
    except SubscriptionConflictError as error:
        print(json.dumps(str(error)), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_with_one_client_id_name_each_other(each_cluster: RealCluster) -> None:
    topic = f"Twins{uuid4().hex[:8]}"
    async with Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=2)

    async def begin(on_conflict: str) -> asyncio.subprocess.Process:
        found = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            MEMBER,
            each_cluster.namesrv,
            topic,
            on_conflict,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        begun.append(found)
        return found

    async def said(process: asyncio.subprocess.Process) -> Any:
        assert process.stdout is not None
        async with asyncio.timeout(25):
            return json.loads(await process.stdout.readline())

    begun: list[asyncio.subprocess.Process] = []
    try:
        for _ in range(2):
            process = await begin("warn")
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), 25) == b"started\n"
        assert [await said(process) for process in begun] == [["duplicate_client_id"]] * 2
        assert "client id 172.17.0.2@worker" in await said(await begin("raise"))
    finally:
        await asyncio.gather(*[process.communicate(b"\n") for process in begun])
