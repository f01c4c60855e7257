"""A client that has started opens no file: a process that may open no more of them gets on with the connections that it has."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys
from rmq_async import Admin, Consumer, Credentials, Message, Producer, PullConsumer
from rmq_async._lookups import look_up
from rmq_async.embedded import EmbeddedRocketMQ

opened = []
watches = False

def opens(event, args):
    if watches and event in ("open", "import"):
        opened.append(str(args[0]))

sys.addaudithook(opens)

async def send(server, credentials, kind):
    global watches
    async with Producer(f"p-{kind}", namesrv=server.namesrv, credentials=credentials, compress_type=kind) as producer:
        watches = True
        await look_up("localhost")
        large = b"much of the same" * 10_000
        await producer.send(Message("T", large, tags="\\N{SNOWMAN}", properties={"\\N{SNOWMAN}": "\\U0001f600"}))
        await producer.send(Message("T", b"x"), key="\\N{SNOWMAN}")
        await producer.send_batch([Message("T", b"x"), Message("T", b"x")])
        watches = False

async def take(server, mode):
    global watches
    watches = True
    consumer = Consumer("g-" + mode, namesrv=server.namesrv, mode=mode, start_from="earliest")
    consumer.subscribe("T", lambda message: None)
    async with consumer:
        await consumer.wait_settled(12)
    watches = False

async def main():
    global watches
    credentials = Credentials("access", "secret-key")
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("T", queues=1)
        for kind in ("zlib", "lz4", "zstd"):
            await send(server, credentials, kind)
        for mode in ("pull", "pop"):
            await take(server, mode)
        async with PullConsumer("r", namesrv=server.namesrv) as reader:
            watches = True
            print(len([message async for message in reader.read("T")]))
            watches = False
    print(opened)

asyncio.run(main())
"""


def test_client_that_has_started_opens_no_file() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == "12\n[]\n", run.stderr


FULL = """
import asyncio, os, resource
from rmq_async import Message, Producer
from rmq_async.errors import RocketMQError
from rmq_async.testing import ThreadedRocketMQ

def filled():
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return held

async def main(namesrv):
    async with Producer("p", namesrv=namesrv, compress_type="zstd") as producer:
        held = filled()
        for body in (b"small", b"large" * 50_000):
            try:
                await producer.send(Message("T", body), timeout=0.5)
            except RocketMQError as error:
                print(error.maybe_stored, "Too many open files" in str(error))
        for descriptor in held:
            os.close(descriptor)
        print((await producer.send(Message("T", b"large" * 50_000))).status.name)

with ThreadedRocketMQ() as server:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
    asyncio.run(main(server.namesrv))
"""


def test_sends_of_a_process_that_may_open_no_file_raise_errors_of_the_library() -> None:
    run = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == "False True\nFalse True\nSEND_OK\n", run.stderr
