"""Users, rights and TLS as real brokers have them: who is let in, which errors the others get, and how soon."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rmq_async import (
    Admin,
    AuthenticationError,
    ClientConfig,
    Credentials,
    Hook,
    Message,
    MessageExt,
    MessageQueue,
    NameServerError,
    PermissionDeniedError,
    Producer,
    PullConsumer,
    RocketMQError,
    SendContext,
    TransactionProducer,
    TransactionStatus,
)
from rmq_async.cli.app import run_command
from rmq_async.testing._config import PROFILES
from rmq_async.testing._probe import Access, ask
from rmq_async.testing.cluster import RealCluster
from rmq_protocol.constants import RequestCode

from ..support.canaries import SECRET_KEY, is_clean
from ..transport.support import until
from .conftest import NO_TIMERS, run, started

TOPIC, DENIED, GROUP = "Allowed", "Denied", "AllowedGroup"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
ALICE = Credentials("alice", SECRET_KEY)
NOT_LET_IN = {
    "wrong key": (Credentials("alice", "canary-secret-wrong"), "check signature failed"),
    "unknown user": (Credentials("eve", SECRET_KEY), "User:eve is not found"),
    "disabled user": (Credentials("bob", SECRET_KEY), "User:bob is disabled"),
    "no key": (None, "username cannot be null"),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[RealCluster]:
    """A broker with users and rights: alice may use one topic and one group, bob is disabled."""
    for real in started(RealCluster(profile=PROFILES["authorization"] | PROFILES["recall"] | PROFILES["transactions"])):
        run(_set_up(real))
        yield real


async def _set_up(real: RealCluster) -> None:
    address, access = real.brokers[0].address, Access(credentials=real.credentials)

    async def change(code: int, ext: dict[str, str | None], body: dict[str, object]) -> None:
        answer = await ask(address, code, ext, json.dumps(body).encode(), access=access)
        assert answer is not None
        assert answer.code == 0, answer.remark

    async with Admin(namesrv=real.namesrv, credentials=real.credentials) as admin:
        for topic in (TOPIC, DENIED):
            await admin.create_topic(topic, queues=1)
    for user, status in (("alice", "enable"), ("bob", "disable")):
        body: dict[str, object] = {"username": user, "password": SECRET_KEY, "userType": "Normal", "userStatus": status}
        await change(RequestCode.AUTH_CREATE_USER, {"username": user}, body)
    rights = [
        {"resource": resource, "actions": ["Pub", "Sub", "Get"], "decision": "Allow"}
        for resource in (f"Topic:{TOPIC}", f"Group:{GROUP}")
    ]
    policy = {"policyType": "Custom", "entries": rights}
    await change(RequestCode.AUTH_CREATE_ACL, {"subject": "User:alice"}, {"subject": "User:alice", "policies": [policy]})


class Attempts(Hook):
    def __init__(self) -> None:
        self.made = 0

    def before_send(self, ctx: SendContext) -> None:
        self.made += 1


@pytest.mark.parametrize("form", ["json", "rocketmq"])
async def test_with_the_right_key_everything_passes(guarded: RealCluster, form: str) -> None:
    config = ClientConfig(namesrv=guarded.namesrv, credentials=ALICE, serialize_type=form)
    large = bytes(range(256)) * 1024
    async with PullConsumer(GROUP, client=config) as consumer, Producer(GROUP, client=config) as producer:
        start = await consumer.max_offset(QUEUE)
        await producer.send(Message(TOPIC, b"send"))
        await producer.send(Message(TOPIC, large, tags="tag", keys=["a", "b"], properties={"é": "ü"}))
        await (await producer.send_async(Message(TOPIC, b"async")))
        await producer.send_batch([Message(TOPIC, b"one"), Message(TOPIC, b"two")])
        await producer.send_oneway(Message(TOPIC, b"oneway"))
        await producer.flush()
        bodies = [message.body async for message in consumer.read(TOPIC, start={QUEUE: start}, end={QUEUE: start + 6})]
        assert sorted(bodies) == sorted([b"send", large, b"async", b"one", b"two", b"oneway"])
        await consumer.commit(QUEUE, start + 6)
        assert await consumer.committed(QUEUE) == start + 6
        found = await consumer.pull(QUEUE, start, tags="tag")
        assert [message.properties["é"] for message in found.messages] == ["ü"]


async def test_a_super_user_may_administer(guarded: RealCluster) -> None:
    async with Admin(namesrv=guarded.namesrv, credentials=guarded.credentials) as admin:
        assert (await admin.topic_stats(TOPIC)) is not None
        await admin.create_topic("Another", queues=1)
        await admin.delete_topic("Another")


async def test_transactions_requests_replies_and_recalls_are_signed_too(guarded: RealCluster) -> None:
    config = ClientConfig(namesrv=guarded.namesrv, credentials=guarded.credentials)
    ends = {b"commit": TransactionStatus.COMMIT, b"rollback": TransactionStatus.ROLLBACK, b"later": TransactionStatus.UNKNOWN}

    async def execute(message: Message, _: object) -> TransactionStatus:
        return ends[message.body]

    async def check(message: MessageExt) -> TransactionStatus:
        return TransactionStatus.COMMIT

    async with (
        PullConsumer(GROUP, client=config) as consumer,
        TransactionProducer("TransactionGroup", client=config, execute=execute, check=check) as transactions,
        Producer("AskingGroup", client=config) as asking,
    ):
        start = {QUEUE: await consumer.max_offset(QUEUE)}
        for body in ends:
            await transactions.send_in_transaction(Message(TOPIC, body))
        sent = await asking.send(Message(TOPIC, b"recalled", delay=600))
        assert sent.recall_handle is not None
        await asking.recall(TOPIC, sent.recall_handle)
        request = asyncio.ensure_future(asking.request(Message(TOPIC, b"question"), timeout=10))
        found: list[bytes] = []
        async for message in consumer.read(TOPIC, start=start, end=None):
            found.append(message.body)
            if message.body == b"question":
                await asking.reply(message, b"answer")
            if {b"question", b"later"} <= set(found):  # the broker asks about the latter 2.6 s after it came
                break
        assert (await request).body == b"answer"
        assert sorted(found) == [b"commit", b"later", b"question"]


Call = Callable[[ClientConfig, str, Attempts], Awaitable[object]]


async def _send(config: ClientConfig, topic: str, attempts: Attempts) -> object:
    async with Producer(GROUP, client=config, retries=5, hooks=[attempts]) as producer:
        return await producer.send(Message(topic, b"x"))


async def _send_async(config: ClientConfig, topic: str, attempts: Attempts) -> object:
    failures: list[BaseException] = []
    async with Producer(GROUP, client=config, async_retries=5, hooks=[attempts]) as producer:
        future = await producer.send_async(Message(topic, b"x"), on_error=failures.append)
        try:
            return await future
        finally:
            assert failures == [future.exception()]


async def _send_batch(config: ClientConfig, topic: str, attempts: Attempts) -> object:
    async with Producer(GROUP, client=config, retries=5, hooks=[attempts]) as producer:
        return await producer.send_batch([Message(topic, b"x"), Message(topic, b"y")])


async def _pull(config: ClientConfig, topic: str, attempts: Attempts) -> object:
    async with PullConsumer(GROUP, client=config) as consumer:
        return await consumer.pull(QUEUE._replace(topic=topic), 0)


async def _read(config: ClientConfig, topic: str, attempts: Attempts) -> object:
    async with PullConsumer(GROUP, client=config) as consumer:
        return [message async for message in consumer.read(topic)]


async def _create_topic(config: ClientConfig, topic: str, attempts: Attempts) -> object:
    async with Admin(client=config) as admin:
        return await admin.create_topic(topic)


@pytest.mark.parametrize("call", [_send, _send_async, _send_batch, _pull, _read, _create_topic])
@pytest.mark.parametrize("who", NOT_LET_IN)
async def test_a_user_that_is_not_let_in_fails_at_once_and_nothing_is_tried_again(
    guarded: RealCluster, who: str, call: Call
) -> None:
    keys, reason = NOT_LET_IN[who]
    attempts = Attempts()
    with pytest.raises(AuthenticationError, match=reason) as caught:
        await call(ClientConfig(namesrv=guarded.namesrv, credentials=keys), TOPIC, attempts)
    assert caught.value.code == 16
    assert not caught.value.retriable
    assert attempts.made <= 1


@pytest.mark.parametrize("call", [_send, _send_async, _send_batch, _pull, _read, _create_topic])
async def test_a_user_without_the_right_fails_at_once_and_nothing_is_tried_again(guarded: RealCluster, call: Call) -> None:
    attempts = Attempts()
    with pytest.raises(PermissionDeniedError, match=f"User:alice has no permission to access Topic:{DENIED}"):
        await call(ClientConfig(namesrv=guarded.namesrv, credentials=ALICE), DENIED, attempts)
    assert attempts.made <= 1


async def test_a_group_that_is_not_allowed_reads_nothing(guarded: RealCluster) -> None:
    async with PullConsumer("OtherGroup", namesrv=guarded.namesrv, credentials=ALICE) as consumer:
        with pytest.raises(PermissionDeniedError, match="Group:OtherGroup"):
            await consumer.pull(QUEUE, 0)


async def test_a_broker_that_refuses_somebody_serves_on(guarded: RealCluster) -> None:
    """On one connection and with fault tables: what one topic is refused leaves the broker as good as it was."""
    async with Producer(GROUP, namesrv=guarded.namesrv, credentials=ALICE, latency_fault=True) as producer:
        for _ in range(3):
            with pytest.raises(PermissionDeniedError):
                await producer.send(Message(DENIED, b"x"))
            assert (await producer.send(Message(TOPIC, b"x"))).attempts == 1


async def test_one_way_messages_with_a_wrong_key_are_not_stored_and_their_error_is_logged(
    guarded: RealCluster, caplog: pytest.LogCaptureFixture
) -> None:
    wrong, reason = NOT_LET_IN["wrong key"]
    async with PullConsumer(GROUP, namesrv=guarded.namesrv, credentials=ALICE) as consumer:
        before = await consumer.max_offset(QUEUE)
        async with Producer(GROUP, namesrv=guarded.namesrv, credentials=wrong, oneway_window=2) as producer:
            for _ in range(4):
                await producer.send_oneway(Message(TOPIC, b"x"))
            await until(lambda: any(reason in record.getMessage() for record in caplog.records))
        assert await consumer.max_offset(QUEUE) == before


async def test_refused_heartbeats_are_one_warning(guarded: RealCluster, caplog: pytest.LogCaptureFixture) -> None:
    wrong, reason = NOT_LET_IN["wrong key"]
    caplog.set_level(logging.DEBUG, "rmq_async")
    options: dict[str, Any] = {"heartbeat_interval": 0.05, "topics": [TOPIC]}
    async with Producer(GROUP, namesrv=guarded.namesrv, credentials=wrong, **options):

        def refused() -> list[logging.LogRecord]:
            return [record for record in caplog.records if "refused a heartbeat" in record.getMessage()]

        await until(lambda: len(refused()) > 5)
    assert [record.levelno for record in refused()].count(logging.WARNING) == 1
    assert reason in refused()[0].getMessage()


def test_the_command_line_signs(
    guarded: RealCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", guarded.namesrv)
    monkeypatch.setenv("RMQ_SECRET_KEY", SECRET_KEY)
    assert run_command(["send", TOPIC, "--body", "x", "--access-key", "alice"]) == 0
    assert run_command(["send", DENIED, "--body", "x", "--access-key", "alice"]) == 1
    assert f"no permission to access Topic:{DENIED}" in capsys.readouterr().err
    assert run_command(["send", TOPIC, "--body", "x", "--access-key", "eve"]) == 1
    output = capsys.readouterr()
    assert "User:eve is not found" in output.err
    assert is_clean(output.out + output.err)


@pytest.fixture(scope="module")
def encrypted() -> Iterator[RealCluster]:
    """A name server with TLS, and a broker that wants to see its clients' certificates too."""
    mutual = replace(PROFILES["mutual-tls"], name_server_jvm=PROFILES["tls"].name_server_jvm)
    yield from started(RealCluster(profile=mutual, broker_conf=NO_TIMERS))


@pytest.mark.parametrize("vip_channel", [False, True])
async def test_everything_goes_over_tls(encrypted: RealCluster, vip_channel: bool) -> None:
    large = bytes(range(256)) * 4096
    context = encrypted.certificates.context(client=True)
    config = ClientConfig(namesrv=encrypted.namesrv, tls=context, vip_channel=vip_channel)
    async with (
        Admin(client=config) as admin,
        Producer("G", client=config, compress_over=1 << 30) as producer,
        PullConsumer("G", client=config) as consumer,
    ):
        topic = f"Tls{vip_channel}"
        await admin.create_topic(topic, queues=2)
        sent = [large, b"async", b"one", b"two", b"oneway"]
        await producer.send(Message(topic, large))
        await (await producer.send_async(Message(topic, b"async")))
        await producer.send_batch([Message(topic, b"one"), Message(topic, b"two")])
        await producer.send_oneway(Message(topic, b"oneway"))
        await producer.flush()
        found: list[bytes] = []
        async for message in consumer.read(topic, end=None):
            found.append(message.body)
            if len(found) == len(sent):
                break
        assert sorted(found) == sorted(sent)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (lambda real: {"tls": ssl.create_default_context()}, "certificate is not accepted: unable to get local issuer"),
        (lambda real: {"tls": True}, "certificate is not accepted: unable to get local issuer"),
        (
            lambda real: {"tls": _trusting(real), "server_hostname": "other.example"},
            "certificate is not accepted: Hostname mism",
        ),
        (lambda real: {}, r"the peer closed it before it had sent a byte: the server may require TLS \(tls=True\)"),
    ],
    ids=["unknown authority", "stock settings", "wrong host", "no TLS"],
)
async def test_a_client_and_a_name_server_that_do_not_fit_say_why(
    encrypted: RealCluster, options: Callable[[RealCluster], dict[str, Any]], reason: str
) -> None:
    producer = Producer("G", namesrv=encrypted.namesrv, **options(encrypted))
    with pytest.raises(NameServerError, match=reason):
        await producer.start()


def _trusting(real: RealCluster) -> ssl.SSLContext:
    return real.certificates.context()


async def test_a_client_without_a_certificate_gets_the_brokers_alert(encrypted: RealCluster) -> None:
    config = ClientConfig(namesrv=encrypted.namesrv, tls=_trusting(encrypted), server_hostname="localhost")
    async with Producer("G", client=config, timeout=5) as producer:
        with pytest.raises(RocketMQError, match="refuses this client's certificate, or requires one"):
            await producer.send(Message("TBW102", b"x"))


async def test_unverified_tls_is_still_tls(encrypted: RealCluster, caplog: pytest.LogCaptureFixture) -> None:
    async with Admin(namesrv=encrypted.namesrv, tls=True, tls_verify=False) as admin:
        assert "TBW102" in await admin.topics()
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert "tls_verify=False" in warned[0]


def test_the_command_line_speaks_tls(encrypted: RealCluster, capsys: pytest.CaptureFixture[str]) -> None:
    files = encrypted.certificates.directory
    shown = ["--cert", str(files / "client.pem"), "--cert-key", str(files / "client.key")]
    common = ["topic", "create", "TlsCli", "--namesrv", encrypted.namesrv, *shown]
    assert run_command([*common, "--ca", str(files / "ca.pem"), "--server-name", "localhost"]) == 0
    assert run_command(common) == 1
    assert "unable to get local issuer certificate" in capsys.readouterr().err
