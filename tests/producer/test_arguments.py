"""Arguments of the wrong type or unit: the error names the argument, the value, and what to give instead."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rmq_async import (
    Admin,
    ClientConfig,
    ClientStateError,
    ConfigError,
    InvalidMessageError,
    Message,
    Producer,
    PullConsumer,
    TransactionProducer,
    TransactionStatus,
    errors,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

TOPIC = "ArgumentTopic"
HERE = {"namesrv": "127.0.0.1:1"}


def transactional(group: str = "group", **options: Any) -> TransactionProducer:
    return TransactionProducer(
        group, execute=lambda *_: TransactionStatus.COMMIT, check=lambda _: TransactionStatus.COMMIT, **options
    )


# -- timeout


Call = Callable[[TransactionProducer, Any], Awaitable[object]]
CALLS: dict[str, Call] = {
    "send": lambda producer, timeout: producer.send(Message(TOPIC, b"x"), timeout=timeout),
    "send with a key": lambda producer, timeout: producer.send(Message(TOPIC, b"x"), key=1, timeout=timeout),
    "send_async": lambda producer, timeout: producer.send_async(Message(TOPIC, b"x"), timeout=timeout),
    "send_oneway": lambda producer, timeout: producer.send_oneway(Message(TOPIC, b"x"), timeout=timeout),
    "send_batch": lambda producer, timeout: producer.send_batch([Message(TOPIC, b"x")], timeout=timeout),
    "send_batch_async": lambda producer, timeout: producer.send_batch_async([Message(TOPIC, b"x")], timeout=timeout),
    "send_in_transaction": lambda producer, timeout: producer.send_in_transaction(Message(TOPIC, b"x"), timeout=timeout),
    "request": lambda producer, timeout: producer.request(Message(TOPIC, b"x"), timeout=timeout),
    "reply": lambda producer, timeout: producer.reply(None, b"x", timeout=timeout),  # type: ignore[arg-type]
    "flush": lambda producer, timeout: producer.flush(timeout),
    "stop": lambda producer, timeout: producer.stop(timeout),
}


@pytest.mark.parametrize("name", CALLS)
async def test_timeout_of_wrong_type(name: str, rocketmq: EmbeddedRocketMQ) -> None:
    async with transactional(namesrv=rocketmq.namesrv) as producer:
        for timeout in ("1", True, b"1", [1.0], 1j):
            with pytest.raises(TypeError, match=r"^timeout must be a number of seconds, not "):
                await CALLS[name](producer, timeout)
        for timeout in (math.nan, -1, -math.inf):
            with pytest.raises(ValueError, match=r"^timeout must be .* seconds, not "):
                await CALLS[name](producer, timeout)
        await producer.send(Message(TOPIC, b"and it goes on"), timeout=Fraction(3))  # type: ignore[arg-type]
    assert [message.body for message in rocketmq.messages(TOPIC)] == [b"and it goes on"]


@pytest.mark.parametrize("kind", [PullConsumer, Admin])
async def test_stop_timeout_of_wrong_type(kind: type[Any], rocketmq: EmbeddedRocketMQ) -> None:
    async with kind(*(["group"] if kind is PullConsumer else []), namesrv=rocketmq.namesrv) as client:
        with pytest.raises(TypeError, match=r"^timeout must be a number of seconds, not '1'"):
            await client.stop("1")
        with pytest.raises(ValueError, match=r"^timeout must be at least 0 seconds, not nan"):
            await client.stop(math.nan)


PROGRAM = """
import asyncio, logging, sys, warnings
from rmq_async import ClientConfig, Message, Producer, ProducerConfig, run
from rmq_async.embedded import EmbeddedRocketMQ

async def main():
    logging.disable()
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv) as producer:
        message = Message("T", b"x")
        await producer.send(message, timeout=999.9)
        await producer.send(message, timeout=float("inf"))
        await producer.send(message, timeout=86400 * 3650)
        CALL
        await producer.send(message, timeout=3000)
        await producer.flush(3000)

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    run(main())
for each in caught:
    line = open(each.filename).read().splitlines()[each.lineno - 1].strip() if each.filename == sys.argv[0] else each.filename
    print(each.category.__name__, line, each.message, sep="|")
"""


@pytest.mark.parametrize(
    ("call", "line", "text"),
    [
        (
            "await producer.send(message, key=1, timeout=3000)",
            None,
            "timeout=3000 is in seconds; if these are milliseconds, give timeout=3.0",
        ),
        ("await asyncio.gather(producer.send_batch([message], timeout=1000))", "run(main())", "timeout=1000 is"),
        ('Producer("g", connect_timeout=3000.0, timeout=5000)', None, "connect_timeout=3000.0 is"),
        ('Producer("g", heartbeat_interval=3600, route_poll_interval=30000)', None, "route_poll_interval=30000 is"),
        ("await producer.stop(5000); await producer.start()", None, "timeout=5000 is"),
    ],
)
def test_timeout_in_milliseconds(call: str, line: str | None, text: str, tmp_path: Path) -> None:
    """In a process of its own, which is waited for: the warning names a line of its program."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("CALL", call))
    environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    (warned,) = [each for each in ended.stdout.splitlines() if not each.startswith("ResourceWarning")]
    category, where, said = warned.split("|")
    assert (category, where) == ("UserWarning", line or call)
    assert said.startswith(text)


# -- messages


class Text(str):
    """A subclass, such as those of template engines."""


@pytest.mark.parametrize("options", [{}, {"keys": "k"}, {"delay": 1.0}])
@pytest.mark.parametrize("body", ["text", "", Text("text")])
def test_message_body_of_str(body: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError, match=r"^the body must be bytes, not str: encode the text") as caught:
        Message(TOPIC, body, **options)
    assert caught.value.code == 13


@pytest.mark.parametrize("deliver_at", [1_790_000_000_000, 1_790_000_000_000.0, 1_000_000_000_001, 1_790_000_000_000_000])
def test_deliver_at_in_milliseconds(deliver_at: float) -> None:
    with pytest.raises(InvalidMessageError, match=r"^deliver_at must be in seconds since the epoch.* looks like milliseconds"):
        Message(TOPIC, b"x", deliver_at=deliver_at)


def test_deliver_at_in_seconds() -> None:
    far = datetime.now(UTC) + timedelta(days=3650)
    assert Message(TOPIC, b"x", deliver_at=far).deliver_at == far
    assert Message(TOPIC, b"x", deliver_at=far.timestamp()).deliver_at == far.timestamp()


# -- groups


@pytest.mark.parametrize("group", ["", "two words", "g" * 121, 7, None])
@pytest.mark.parametrize("make", [Producer, PullConsumer, transactional])
def test_group_that_is_bad(make: Callable[..., object], group: Any) -> None:
    for kind in (ConfigError, InvalidMessageError, errors.InvalidGroupError, ValueError):
        with pytest.raises(kind, match="group") as caught:
            make(group, **HERE)
        assert getattr(caught.value, "code", None) == -1


async def test_group_too_long_in_its_namespace(rocketmq: EmbeddedRocketMQ) -> None:
    producer = Producer("g" * 80, namesrv=rocketmq.namesrv, namespace="n" * 60)
    with pytest.raises(ConfigError, match="141 characters, the limit is 120"):
        await producer.start()
    async with Admin(namesrv=rocketmq.namesrv) as admin:
        for ask in (admin.producer_connections, admin.consumer_connections):
            with pytest.raises(ConfigError, match="blank"):
                await ask(" ")


# -- states


@pytest.mark.parametrize("stopped", [False, True])
async def test_client_that_is_not_started(stopped: bool, rocketmq: EmbeddedRocketMQ) -> None:
    client = ClientConfig(namesrv=rocketmq.namesrv)
    producer, consumer, admin = Producer("group", client=client), PullConsumer("group", client=client), Admin(client=client)
    transactions = transactional("other", client=client)
    if stopped:
        for each in (producer, consumer, admin, transactions):
            await each.start()
            await each.stop()
    state = "stopped" if stopped else "not started"
    for call, kind in (
        (producer.send(Message(TOPIC, b"x")), "Producer"),
        (producer.flush(), "Producer"),
        (transactions.send(Message(TOPIC, b"x")), "TransactionProducer"),
        (consumer.queues(TOPIC), "PullConsumer"),
        (admin.topics(), "Admin"),
    ):
        with pytest.raises(ClientStateError, match=rf"is {state}: .*`async with {kind}\(\.\.\.\)`"):
            await call


# -- recalls


async def test_recall_refused_by_a_broker(rocketmq: EmbeddedRocketMQ) -> None:
    async with Producer("group", namesrv=rocketmq.namesrv) as producer:
        sent = await producer.send(Message(TOPIC, b"x", delay=30.0))
        assert sent.recall_handle is not None
        for code in (16, 3):
            rocketmq.fail_next(code, request=RequestCode.RECALL_MESSAGE)
            with pytest.raises(errors.BrokerError, match="recallMessageEnable=true") as caught:
                await producer.recall(TOPIC, sent.recall_handle)
            assert caught.value.code == code
        rocketmq.fail_next(14, request=RequestCode.RECALL_MESSAGE)
        with pytest.raises(errors.BrokerError) as caught:
            await producer.recall(TOPIC, sent.recall_handle)
        assert "recallMessageEnable" not in str(caught.value)


@pytest.mark.parametrize(
    ("owner", "given"), [(Producer, ()), (Producer, ("group", "name-server:9876")), (PullConsumer, ()), (Admin, ("x",))]
)
def test_a_missing_or_extra_argument_names_the_class_of_the_user(owner: type[Any], given: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=rf"^{owner.__name__}\.__init__\(\)"):
        owner(*given)
