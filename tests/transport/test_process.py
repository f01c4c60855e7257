"""What must be seen from outside, and waits for a process: a fork under a started pool, and a pool that was not closed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interpreters

PROLOGUE = f"""
import asyncio, gc, json, os, socket, sys
import uvloop
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from fakes import Peer
from rmq_async.config import ClientConfig
from rmq_async.transport import ConnectionPool
from rmq_protocol.command import RemotingCommand

def run(main):
    factory = {{"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}}[sys.argv[1]]
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
"""

FORK = """
async def main():
    async with Peer() as peer:
        pool = ConnectionPool(ClientConfig())
        connection = await pool.connect(peer.address, 60)
        for fork in range(2):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                outcomes = []
                for call in (pool.connect(peer.address, 60), pool.connect("127.0.0.1:1", 60), pool.aclose()):
                    try:
                        call.send(None)
                        outcomes.append("went on")
                    except BaseException as error:
                        outcomes.append(type(error).__name__)
                os.write(write, json.dumps(outcomes).encode())
                os._exit(0)
            os.waitpid(pid, 0)
            outcomes = json.loads(os.read(read, 1000))
            os.close(read)
            os.close(write)
            answer = await connection.request(RemotingCommand(code=34, body=b"parent"), 60)
            print(json.dumps([outcomes, answer.body.decode(), connection.is_open, len(peer.links)]))
        await pool.aclose()
run(main)
"""

FORGOTTEN = """
listener = socket.create_server(("127.0.0.1", 0))
async def main():
    pool = ConnectionPool(ClientConfig())
    await pool.connect(f"127.0.0.1:{listener.getsockname()[1]}", 60)
run(main)
gc.collect()
listener.close()
"""


def python(script: str, loop: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", PROLOGUE + script, loop]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_in_a_forked_child_every_call_is_refused_and_the_parent_goes_on(loop: str) -> None:
    done = python(FORK, loop, "-W", "error")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert rounds == [[["ForkedError"] * 3, "parent", True, 1]] * 2


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_pool_that_was_not_closed_is_a_resource_warning(loop: str) -> None:
    done = python(FORGOTTEN, loop, "-W", "always")
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning: unclosed" in done.stderr
