"""A child process: every call says so, the parent's connections stay as they are, and a producer of its own works.

The test waits for an interpreter of its own, as a fork would copy that of pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.interpreters

PROGRAM = """
import asyncio, gc, logging, os, sys, traceback, warnings
from rmq_async import Message, Producer, TransactionProducer, TransactionStatus, errors
from rmq_async.embedded import EmbeddedRocketMQ

warnings.simplefilter("error")
warnings.filterwarnings("ignore", message=".*multi-threaded")  # that compresses large bodies in threads; the child has its own
LARGE = Message("Large", b"x" * 100_000)
logging.getLogger("rmq_async").setLevel(logging.ERROR)

async def calls(sender):
    item = Message("T", b"x")
    waits = [
        sender.send(item), sender.send(item, key=1), sender.send_async(item), sender.send_oneway(item),
        sender.send_batch([item]), sender.send_batch_async([item]), sender.send_in_transaction(item), sender.request(item),
        sender.reply(None, b"x"), sender.recall("T", "x"), sender.flush(), sender.fetch_publish_queues("T"), sender.stop(),
        sender.start(),
    ]
    return await asyncio.gather(*waits, return_exceptions=True)

def ended(*_):
    return TransactionStatus.COMMIT

async def child(sender, made, namesrv, inherited):
    results = await calls(sender)
    assert {type(error) for error in results} == {errors.ForkedError}, results
    del results, sender
    gc.collect()
    async with Producer("group", namesrv=namesrv) as own:
        result = await own.send(Message("T", b"child"))
        await own.send(LARGE)
    assert result.msg_id not in inherited
    async with made:
        name = made._instance.client_id.partition("@")[2]
        assert name.startswith(f"{os.getpid()}#"), name
        await made.send(Message("T", b"made before"))

async def parent():
    async with EmbeddedRocketMQ() as server:
        made = Producer("made-before", namesrv=server.namesrv)
        async with TransactionProducer("group", execute=ended, check=ended, namesrv=server.namesrv) as sender:
            first = await sender.send(Message("T", b"parent 1"))
            await sender.send(LARGE)
            pending = await sender.send_async(Message("T", b"pending"))
            clients = server.statistics("broker-a").accepted
            pid = os.fork()
            if pid == 0:
                asyncio.events._set_running_loop(None)
                try:
                    asyncio.run(child(sender, made, server.namesrv, [first.msg_id]))
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            while True:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    break
                await asyncio.sleep(0.01)
            assert status == 0, status
            await pending
            for number in range(20):
                result = await sender.send(Message("T", b"parent 2"))
                assert result.attempts == 1
            assert len(sender._sender.connections) == 2
            assert server.statistics("broker-a").accepted == clients + 2
        bodies = sorted(item.body for item in server.messages("T"))
        assert bodies == [b"child", b"made before", b"parent 1"] + [b"parent 2"] * 20 + [b"pending"], bodies
        ids = [item.msg_id for item in server.messages("T")]
        assert len(set(ids)) == len(ids)

asyncio.run(parent())
print("good")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_in_a_child_every_call_is_refused_and_the_parent_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "good\n", done.stderr
    assert done.returncode == 0
    assert done.stderr == ""
