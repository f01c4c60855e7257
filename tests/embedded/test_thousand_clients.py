"""A thousand hostile clients at once, and one that is served all the same.

Real time: the server is a process of its own, whose memory is looked at, and its backlog is the kernel's.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import struct
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from rmq_protocol.command import RemotingCommand, encode_command
from rmq_protocol.constants import MAX_FRAME_SIZE

from ..support.fakes import RawClient, send_fields
from ..support.waiting import until

CLIENTS = 1000
SENDS = 300
FRAME = b"".join(encode_command(RemotingCommand(code=310, ext_fields={**send_fields("slow")}, body=b"x")))
KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    lambda rng: rng.randbytes(rng.randrange(8, 300)),
    lambda rng: struct.pack(">iI", 2**31 - 1, rng.randrange(2**32)) + b"x" * 50,
    lambda rng: struct.pack(">iI", MAX_FRAME_SIZE - 4, 100) + bytes(rng.randrange(200)),
    lambda rng: b"",
)
HALF_A_FRAME, SLOW_BYTES = 2, 3


class Nuisance(asyncio.Protocol):
    """Comes back half a second after it was thrown out. The last two kinds stay, and add a byte every 200 ms."""

    def __init__(self, crowd: Crowd, kind: int) -> None:
        self.crowd = crowd
        self.kind = kind
        self.at = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.crowd.open.add(self)
        transport.write(KINDS[self.kind](self.crowd.rng))
        if self.kind >= HALF_A_FRAME:
            self.dribble()

    def dribble(self) -> None:
        if self.transport is not None and not self.crowd.ending:
            self.transport.write(FRAME[self.at : self.at + 1] if self.kind == SLOW_BYTES else b"x")
            self.at = (self.at + 1) % len(FRAME)
            self.crowd.loop.call_later(0.2, self.dribble)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.crowd.open.discard(self)
        self.crowd.thrown_out += 1
        if not self.crowd.ending:
            self.crowd.loop.call_later(0.3 + self.crowd.rng.random() * 0.4, self.crowd.come, self.kind)


class Crowd:
    def __init__(self, address: str, rng: random.Random) -> None:
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self.rng = rng
        self.loop = asyncio.get_running_loop()
        self.open: set[Nuisance] = set()
        self.ending = False
        self.thrown_out = 0
        self.coming: set[asyncio.Task[object]] = set()

    def come(self, kind: int) -> None:
        if not self.ending:
            task: asyncio.Task[object] = self.loop.create_task(
                self.loop.create_connection(lambda: Nuisance(self, kind), *self.address)
            )
            self.coming.add(task)
            task.add_done_callback(self.coming.discard)

    async def gather(self) -> None:
        for number in range(CLIENTS):
            self.come(number % len(KINDS))
            if number % 50 == 49:
                await asyncio.sleep(0.02)

    def patient(self) -> set[Nuisance]:
        """Those that broke no rule yet."""
        return {nuisance for nuisance in self.open if nuisance.kind >= HALF_A_FRAME}

    async def disperse(self) -> None:
        self.ending = True
        await asyncio.gather(*self.coming, return_exceptions=True)
        for nuisance in list(self.open):
            if nuisance.transport is not None:
                nuisance.transport.abort()
        while self.open:
            await asyncio.sleep(0.01)


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough for both ends, here and in the server that inherits them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CLIENTS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} descriptors allowed, {wanted} wanted")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def served(client: RawClient) -> None:
    for _ in range(SENDS):
        assert (await client.send("T", b"x" * 100)).code == 0
        await asyncio.sleep(0.003)


async def run(process: asyncio.subprocess.Process, rng: random.Random) -> None:
    assert process.stdout is not None
    announced = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
    server = psutil.Process(process.pid)
    async with RawClient(announced["brokers"]["broker-a"]) as client:
        await served(client)
        before = server.memory_info().rss
        crowd = Crowd(announced["brokers"]["broker-a"], rng)
        try:
            await crowd.gather()
            await until(lambda: len(crowd.patient()) >= CLIENTS / 2)  # a thousand are more than a backlog holds: some try again
            patient = crowd.patient()
            await served(client)
            while crowd.thrown_out <= CLIENTS / 4:
                await served(client)
            grown = server.memory_info().rss - before
            staying = patient & crowd.open
            async with RawClient(announced["namesrv"]) as names:
                assert (await names.ask(105, {"topic": "T"})).code == 0
        finally:
            await crowd.disperse()
        print(f"{grown / 1e6:.1f} MB more, {crowd.thrown_out} thrown out")
        assert staying == patient
        assert grown < 24_000_000
        await served(client)


def test_a_thousand_hostile_clients_stop_no_other(descriptors: None) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")

    async def main() -> None:
        command = [sys.executable, "-W", "error", "-m", "rmq_async.cli", "server", "--port", "0", "--json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        try:
            await run(process, random.Random(seed))
        finally:
            process.terminate()
            _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, errors.decode()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(main())
