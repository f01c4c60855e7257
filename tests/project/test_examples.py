"""Every example runs as it stands, without arguments and without a warning."""

from __future__ import annotations

import asyncio
import os
import runpy
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_sessionmaker

from rmq_async import Admin, Message, MessageExt, Producer, TransactionProducer, TransactionStatus
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import ReplyTimeoutError

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = {path.relative_to(EXAMPLES).as_posix() for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*/main.py"))}
SAYS = {
    "archive.py": "11 orders, dead letters: [b'rubbish']",
    "accounts.py": "200 accounts, 999 changes\naccount-17: [0, 1, 3, 6, 10, 15]\ndead letters: [b'not JSON']\n",
    "async_callbacks.py": "1000 stored, 0 failed",
    "batch.py": "32 messages, offsets 0 to 31, 1 request",
    "batches.py": "99 rows\ndead letters: [b'not JSON']\n",
    "broadcast.py": "2 read: {'EUR': 1.0, 'USD': 1.09}\n2 read: {'EUR': 1.0, 'USD': 1.1, 'CHF': 0.95}\n",
    "delayed.py": "now\nnow - level 3: in 10 s\nnow - level 3: in 10 s - in an hour\n"
    "now - level 3: in 10 s - in an hour - tomorrow\n",
    "errors.py": "one broker refused, another stored it: 2 attempts\n3 attempts refused, maybe_stored=False\n"
    "no answer in time, maybe_stored=True\nrefused before anything was sent: the body has 4194305 bytes, the limit is 4194304; "
    "shorten it or raise max_message_size",
    "exactly_once.py": "4 messages, 60 paid",
    "fastapi_service.py": "201: order 17 paid\n503: not confirmed; may be announced all the same: True\n",
    "fastapi_probes.py": "no cluster yet: live 200, ready 503 no_name_server\nsent before the cluster was there: SEND_OK\n"
    "with the cluster: live 200, ready 200\nthe broker is gone: live 200, ready 503 broker_unreachable\n",
    "fastapi_orders/main.py": "4 apples: 201 {'order': 1}\n7 apples: 409 {'detail': 'there are not 7 of apple'}\n"
    "3 apples: 201 {'order': 2}\n3 messages, of 2 orders\n2 apples: 201 {'order': 3}\nthe broker refuses, 1 message waits\n"
    "4 messages, shipped: [1, 2, 3]\n",
    "fastapi_worker.py": "before the start: live 200, ready 503 not_started\nrunning: live 200, ready 200\nbilled: order 17\n"
    "after the stop: live 200, ready 503 stopped\n",
    "lite_topics.py": "garden kitchen\n",
    "load_batches.py": "9 rows, 1 dead letter",
    "oneway.py": "2000 handed over, 2000 arrived",
    "ordered.py": "order-1 created > paid > sent\norder-2 created > paid > sent\norder-3 created > paid > sent",
    "pop_workers.py": "100 jobs, 5 workers, 0 done twice",
    "priorities.py": "in order: True, the urgent one waited for fewer than 10: True",
    "read_back.py": "10 messages in 4 queues\n[b'order 10']\n[b'order 1', b'order 3', b'order 5', b'order 7', b'order 9']",
    "request_reply.py": "apple: 3\npear: 4\nplum: no answer\n",
    "send.py": "SEND_OK: ",
    "simulated_day.py": "720 orders taken, 720 shipped",
    "simulated_service.py": "7 minutes, ",
    "test_my_service.py": "4 passed",
    "transaction.py": "order-1 for 60: COMMIT\norder-2 for 60: ROLLBACK\norder-3 for 40: UNKNOWN\nannounced: order-1, order-3\n",
    "tracing.py": "POST /orders - ours\nsend TracedTopic - SystemBusyError\nsend TracedTopic - SEND_OK\n"
    "process TracedTopic - done\nwrite the bill - ours\nlinked: True\nmessage trace: Pub orders failed\n"
    "message trace: Pub orders success\nmessage trace: SubBefore billing success\nmessage trace: SubAfter billing success\n",
    "worker.py": "3 handled, committed: 3",
    "your_tests.py": "passed",
}
"""With a line's end: all that it says; else a part of it."""


ON_SPARK = {name for name in PROGRAMS if name.startswith("spark_")}
"""Run by tests/spark, in one session."""


Runs = Mapping[str, "Future[subprocess.CompletedProcess[str]]"]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """The examples that the session asks for, four at a time: they are processes, and wait for most of their time."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and "runs" in item.fixturenames]
    with ThreadPoolExecutor(4) as pool:
        yield {name: pool.submit(run, name) for name in (item.callspec.params["name"] for item in items)}


def run(name: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    if "/" in name:
        environment.pop("PYTHONSAFEPATH", None)  # its parts are beside it
    pytest_or_not = ["-m", "pytest"] if name.startswith("test_") else []
    command = [sys.executable, "-W", "error", *pytest_or_not, str(EXAMPLES / name)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.deep] if name == "simulated_day.py" else [])
        for name in sorted(PROGRAMS - ON_SPARK)
    ],
)
def test_an_example_runs_and_says_what_it_should(name: str, runs: Runs) -> None:
    ended = runs[name].result()
    assert ended.returncode == 0, ended.stderr
    assert (SAYS[name] == ended.stdout) if SAYS[name].endswith("\n") else (SAYS[name] in ended.stdout)
    assert "Traceback" not in ended.stderr
    assert "Warning" not in ended.stderr


def test_every_example_is_in_the_list_of_examples() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    assert SAYS.keys() | ON_SPARK == PROGRAMS
    assert not [name for name in PROGRAMS if f"]({name})" not in listed]


def parts_of(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name), run_name="example")


@pytest.mark.virtual_time
async def test_a_check_leaves_open_what_another_process_still_executes() -> None:
    shop = parts_of("transaction.py")["Shop"]()
    asked = asyncio.Event()

    async def execute(message: Message, price: int) -> TransactionStatus:
        async with asyncio.timeout(60):
            await asked.wait()
        await asyncio.sleep(0.1)  # the answer is on its way
        status: TransactionStatus = shop.execute(message, price)
        return status

    def check(message: MessageExt) -> TransactionStatus:
        asked.set()
        status: TransactionStatus = shop.check(message)
        return status

    times: dict[str, Any] = {"transaction_timeout": 0.1, "transaction_check_interval": 0.05, "transaction_check_max": 1000}
    async with EmbeddedRocketMQ(**times) as server:
        options: dict[str, Any] = {"execute": execute, "namesrv": server.namesrv, "topics": ["PaidTopic"]}
        async with (
            TransactionProducer("payments", check=shop.check, **options) as one,
            TransactionProducer("payments", check=check, instance_name="another process", **options),
        ):
            result = await one.send_in_transaction(Message("PaidTopic", b"x", keys="order-3"), 40)
            assert result.local_status is TransactionStatus.UNKNOWN
            async with asyncio.timeout(60):
                while not server.messages("PaidTopic"):
                    await asyncio.sleep(0.02)
    shop.database.close()


@pytest.mark.virtual_time
async def test_a_service_that_answers_outlives_questions_whose_askers_are_gone(caplog: pytest.LogCaptureFixture) -> None:
    answer = parts_of("request_reply.py")["answer"]
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("PriceTopic", queues=1)
        async with Producer("gone", namesrv=server.namesrv, instance_name="gone", stop_timeout=0) as gone:
            with pytest.raises(ReplyTimeoutError):
                await gone.request(Message("PriceTopic", b"pear"), timeout=0.2)
            waiting = asyncio.ensure_future(gone.request(Message("PriceTopic", b"pear"), timeout=60))
            while len(server.messages("PriceTopic")) < 2:
                await asyncio.sleep(0.01)
        await asyncio.wait([waiting])
        assert waiting.exception() is not None
        answering = asyncio.ensure_future(answer(server.namesrv))
        async with Producer("shop", namesrv=server.namesrv) as producer:
            assert (await producer.request(Message("PriceTopic", b"apple"))).body == b"3"
        answering.cancel()
        await asyncio.wait([answering])
        assert len([record for record in caplog.records if record.name == "prices"]) == 1  # the other one was over


async def test_a_worker_at_a_name_server_runs_until_sigterm_and_commits_before_it_ends() -> None:
    async with EmbeddedRocketMQ() as server, Producer("orders", namesrv=server.namesrv) as producer:
        await producer.send(Message("OrderTopic", b"order 17", tags="paid"))
        command = [sys.executable, "-W", "error", str(EXAMPLES / "worker.py")]
        environment = {**os.environ, "NAMESRV_ADDR": server.namesrv}
        worker = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=environment)
        assert worker.stdout is not None
        try:
            async with asyncio.timeout(60):
                assert await worker.stdout.readline() == b"billed: order 17\n"
                worker.terminate()
                assert await worker.wait() == 0
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
        assert sum(server.progress("billing").values()) == 1


class Orders:
    """The consumer of examples/fastapi_orders, on a database of its own. ``read``: offsets of the messages it came to."""

    def __init__(self, parts: dict[str, Any], database: Path) -> None:
        self.parts = parts
        self.engine = parts["open_database"](f"sqlite+aiosqlite:///{database}")
        self.sessions = async_sessionmaker(self.engine)
        self.read: list[int] = []
        handle = parts["handle"]

        async def handled(sessions: Any, message: MessageExt) -> None:
            self.read.append(message.queue_offset)
            await handle(sessions, message)

        self.swap("handle", handled)

    def swap(self, name: str, function: Any) -> None:
        self.parts["consume"].__globals__[name] = function

    def consume(self, server: EmbeddedRocketMQ) -> asyncio.Task[None]:
        return asyncio.create_task(self.parts["consume"](self.sessions, server.namesrv))

    async def kept(self, kind: str, column: str) -> list[Any]:
        async with self.sessions() as session:
            return list(await session.scalars(select(getattr(self.parts[kind], column)).order_by(column)))

    async def until_position(self, offset: int) -> None:
        async with asyncio.timeout(60):
            while await self.kept("Position", "offset") != [offset]:
                await asyncio.sleep(0.02)


@pytest.fixture
async def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Orders]:
    monkeypatch.syspath_prepend(EXAMPLES / "fastapi_orders")
    made = Orders(parts_of("fastapi_orders/consumer.py"), tmp_path / "shipping.db")
    await made.parts["create_tables"](made.engine, made.parts["Base"])
    yield made
    await made.engine.dispose()
    del sys.modules["database"]


@pytest.fixture
async def orders_server() -> AsyncIterator[EmbeddedRocketMQ]:
    """With one queue, in which offsets are the order of sending."""
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("OrderTopic", queues=1)
        yield server


def placed(number: int, **options: Any) -> Message:
    return Message("OrderTopic", b'{"order": %d, "article": "apple", "pieces": 1}' % number, **options)


async def test_a_copy_is_skipped_and_a_restart_goes_on_at_the_next_message(
    orders: Orders, orders_server: EmbeddedRocketMQ, caplog: pytest.LogCaptureFixture
) -> None:
    async with Producer("orders", namesrv=orders_server.namesrv) as producer:
        for message in (placed(1, unique_id="one"), placed(1, unique_id="one"), Message("OrderTopic", b"\xff"), placed(2)):
            await producer.send(message)
        consuming = orders.consume(orders_server)
        await orders.until_position(4)
        consuming.cancel()
        await asyncio.wait([consuming])
        assert await orders.kept("Shipment", "order") == [1, 2]
        assert len([record for record in caplog.records if record.name == "shipping"]) == 1
        assert len([problem for problem in await orders.kept("Handled", "problem") if problem is not None]) == 1

        orders.read.clear()
        await producer.send(placed(1, unique_id="one"))
        await producer.send(placed(3))
        consuming = orders.consume(orders_server)
        await orders.until_position(6)
        consuming.cancel()
        await asyncio.wait([consuming])
    assert orders.read == [4, 5]
    assert await orders.kept("Shipment", "order") == [1, 2, 3]
    assert len(await orders.kept("Handled", "unique_id")) == 4


async def test_work_that_fails_leaves_no_trace_and_is_done_by_the_next_start(
    orders: Orders, orders_server: EmbeddedRocketMQ
) -> None:
    ship = orders.parts["ship"]

    def ship_and_fail(session: Any, message: MessageExt) -> None:
        ship(session, message)
        if message.queue_offset == 1:
            raise RuntimeError("no parcels left")

    async with Producer("orders", namesrv=orders_server.namesrv) as producer:
        for number in (1, 2, 3):
            await producer.send(placed(number))
    orders.swap("ship", ship_and_fail)
    with pytest.raises(RuntimeError, match="no parcels left"):
        await orders.consume(orders_server)
    assert await orders.kept("Shipment", "order") == [1]
    assert await orders.kept("Position", "offset") == [1]

    orders.swap("ship", ship)
    orders.read.clear()
    consuming = orders.consume(orders_server)
    await orders.until_position(3)
    consuming.cancel()
    await asyncio.wait([consuming])
    assert orders.read == [1, 2]
    assert await orders.kept("Shipment", "order") == [1, 2, 3]
