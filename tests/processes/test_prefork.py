"""Servers that fork: gunicorn, with the application loaded in its workers or, before the fork, in their parent; and uvicorn,
which starts its workers afresh. Each worker's own producer works, and a parent's is neither usable nor disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from rmq_async import Admin, Producer, PullConsumer, RocketMQError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.message import MessageExt

from ..embedded.inside import broker_of

HERE = Path(__file__).parent
GUNICORN = ["-m", "gunicorn", "--chdir", str(HERE), "-k", "uvicorn_worker.UvicornWorker", "--workers", "2"]
UVICORN = ["-m", "uvicorn", "--app-dir", str(HERE), "--workers", "2"]

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"), pytest.mark.interpreters]


async def until(condition: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            assert process.poll() is None, process.returncode
            await asyncio.sleep(0.01)


class Service:
    """The application's processes, seen from outside: by its messages and its HTTP."""

    def __init__(
        self, server: EmbeddedRocketMQ, path: Path, process: subprocess.Popen[bytes], client: httpx.AsyncClient
    ) -> None:
        self.server = server
        self.path = path
        self.process = process
        self.client = client

    def workers(self) -> dict[int, str]:
        """What each worker said when it started: its process id, and what became of the parent's producer in it."""
        reports = [message.body.decode().split(" ", 2) for message in self.server.messages("Workers")]
        assert {int(parent) for _, parent, _ in reports} <= {self.process.pid}
        return {int(pid): outcome for pid, _, outcome in reports}

    async def started(self, number: int) -> dict[int, str]:
        await until(lambda: len(self.workers()) >= number and self.listens(), self.process)
        return self.workers()

    def listens(self) -> bool:
        """A worker of uvicorn listens only when its application has started, and said so."""
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.path)) == 0

    async def order(self, number: int) -> int:
        """The process id of the worker that announced it, and asked a question and got its answer."""
        response = await self.client.post(f"/orders/{number}")
        assert response.is_success, response.text
        answer = response.json()
        assert (answer["attempts"], answer["answer"]) == (1, f"answer {number}")
        return int(answer["pid"])

    async def order_from_each(self, answered: list[bytes]) -> set[int]:
        """One order announced by either of two workers: while the first one to answer is stopped, the other one must.

        ``answered``: questions whose reply is confirmed; before that a worker that is stopped would hold the broker up.
        """
        first = await self.order(1)
        await until(lambda: answered == [b"1"], self.process)
        os.kill(first, signal.SIGSTOP)
        try:
            return {first, await self.order(2)}
        finally:
            os.kill(first, signal.SIGCONT)

    def traffic(self, topic: str) -> list[MessageExt]:
        return self.server.messages(topic)


@asynccontextmanager
async def running(command: list[str], address: Callable[[Path], list[str]], **environment: str) -> AsyncIterator[Service]:
    with tempfile.TemporaryDirectory(prefix="rmq") as directory:
        path = Path(directory) / "http"
        async with EmbeddedRocketMQ() as server:
            process = subprocess.Popen(
                [sys.executable, *command, *address(path), "prefork_app:app"],
                env={**os.environ, "PREFORK_NAMESRV": server.namesrv, **environment},
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            try:
                transport = httpx.AsyncHTTPTransport(uds=str(path))
                async with httpx.AsyncClient(
                    transport=transport, base_url="http://service", headers={"connection": "close"}, timeout=60
                ) as client:
                    yield Service(server, path, process, client)
                process.terminate()
                _, said = await asyncio.to_thread(process.communicate, timeout=60)
                assert process.returncode == 0, said.decode()
                assert b"Traceback" not in said, said.decode()
                for group in ("own", "made"):
                    assert not broker_of(server).state.clients.producers.get(group)
            finally:
                with contextlib.suppress(ProcessLookupError):  # workers would outlive their parent
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                assert process.stderr is not None
                process.stderr.close()


async def answer_questions(namesrv: str, answered: list[bytes]) -> None:
    async with PullConsumer("answers", namesrv=namesrv) as consumer, Producer("answers", namesrv=namesrv) as producer:
        async for question in consumer.read("Questions", end=None):
            try:
                await producer.reply(question, b"answer " + question.body)
                answered.append(question.body)
            except RocketMQError as error:  # the one that asked is gone; others wait
                print(f"no reply to question {question.body!r}: {error}")


async def check_that_each_worker_is_a_client_of_its_own(service: Service) -> None:
    """By its requests, whose replies find it, by its names, and by the ids of its messages."""
    workers = await service.started(2)
    async with Admin(namesrv=service.server.namesrv) as admin:
        await admin.create_topic("Questions", queues=1)
        answered: list[bytes] = []
        answering = asyncio.ensure_future(answer_questions(service.server.namesrv, answered))
        try:
            assert await service.order_from_each(answered) == set(workers)
        finally:
            answering.cancel()
            await asyncio.wait([answering])
        for group in ("own", "made"):
            clients = [each.client_id.partition("@")[2] for each in await admin.producer_connections(group)]
            assert {int(name.partition("#")[0]) for name in clients} == set(workers)


def ids(service: Service) -> list[str]:
    return [message.msg_id for topic in ("Workers", "Orders", "Questions", "Parent") for message in service.traffic(topic)]


async def test_workers_of_uvicorn() -> None:
    async with running(UVICORN, lambda path: ["--uds", str(path)]) as service:
        await check_that_each_worker_is_a_client_of_its_own(service)
        assert len(set(ids(service))) == len(ids(service)) == 6


async def test_workers_of_gunicorn() -> None:
    async with running(GUNICORN, lambda path: ["--bind", f"unix:{path}"]) as service:
        await check_that_each_worker_is_a_client_of_its_own(service)
        assert len(set(ids(service))) == len(ids(service)) == 6


async def test_workers_of_gunicorn_that_fork_from_a_parent_with_a_started_producer() -> None:
    async with running([*GUNICORN, "--preload"], lambda path: ["--bind", f"unix:{path}"], PREFORK_PARENT="1") as service:
        await check_that_each_worker_is_a_client_of_its_own(service)
        gone = next(iter(service.workers()))
        os.kill(gone, signal.SIGTERM)  # gunicorn replaces it
        workers = await service.started(3)
        assert set(workers.values()) == {"ForkedError"}
        sent = len(service.traffic("Parent"))
        await until(lambda: len(service.traffic("Parent")) > sent + 5, service.process)

        traffic = service.traffic("Parent")
        assert {message.body for message in traffic} == {b"attempts 1"}
        assert len({message.born_host for message in traffic}) == 1  # one connection from the first to the last
        mine = 1  # the admin, the consumer and the producer of this test are one client
        assert service.server.statistics("broker-a").accepted == 1 + len(workers) + mine
        found = ids(service)
        assert len(set(found)) == len(found)
