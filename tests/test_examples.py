"""Every example runs as it stands, without arguments and without a warning."""

from __future__ import annotations

import asyncio
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmq_async import Admin, Message, MessageExt, Producer, TransactionProducer, TransactionStatus
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import ReplyTimeoutError

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "async_callbacks.py": "1000 stored, 0 failed",
    "batch.py": "32 messages, offsets 0 to 31, 1 request",
    "delayed.py": "now\nnow - level 3: in 10 s\nnow - level 3: in 10 s - in an hour\n"
    "now - level 3: in 10 s - in an hour - tomorrow\n",
    "errors.py": "one broker refused, another stored it: 2 attempts\n3 attempts refused, maybe_stored=False\n"
    "no answer in time, maybe_stored=True\nrefused before anything was sent: the body has 4194305 bytes, the limit is 4194304",
    "fastapi_service.py": "201: order 17 paid\n503: not confirmed; may be announced all the same: True\n",
    "oneway.py": "2000 handed over, 2000 arrived",
    "ordered.py": "order-1 created > paid > sent\norder-2 created > paid > sent\norder-3 created > paid > sent",
    "read_back.py": "10 messages in 4 queues\n[b'order 10']\n[b'order 1', b'order 3', b'order 5', b'order 7', b'order 9']",
    "request_reply.py": "apple: 3\npear: 4\nplum: no answer\n",
    "send.py": "SEND_OK: ",
    "test_my_service.py": "4 passed",
    "transaction.py": "order-1 for 60: COMMIT\norder-2 for 60: ROLLBACK\norder-3 for 40: UNKNOWN\nannounced: order-1, order-3\n",
    "tracing.py": "send TracedTopic - SystemBusyError\nsend TracedTopic - SEND_OK\nprocess TracedTopic - ours\ntraces: 1\n"
    "message trace: not stored\nmessage trace: stored\n",
    "your_tests.py": "passed",
}


ON_SPARK = {path.name for path in EXAMPLES.glob("spark_*.py")}
"""Run by tests/spark, in one session."""


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in ON_SPARK))
def test_an_example_runs_and_says_what_it_should(name: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    pytest_or_not = ["-m", "pytest"] if name.startswith("test_") else []
    command = [sys.executable, "-W", "error", *pytest_or_not, str(EXAMPLES / name)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert SAYS[name] in ended.stdout
    assert "Traceback" not in ended.stderr
    assert "Warning" not in ended.stderr


def test_every_example_is_in_the_list_of_examples() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == SAYS.keys() | ON_SPARK
    assert not [name for name in names if f"]({name})" not in listed]


def parts_of(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name), run_name="example")


async def test_a_check_leaves_open_what_another_process_still_executes() -> None:
    shop = parts_of("transaction.py")["Shop"]()
    asked = asyncio.Event()

    async def execute(message: Message, price: int) -> TransactionStatus:
        async with asyncio.timeout(20):
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
            async with asyncio.timeout(10):
                while not server.messages("PaidTopic"):
                    await asyncio.sleep(0.02)
    shop.database.close()


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
