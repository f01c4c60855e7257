"""Secrets are shown nowhere: representations, errors, pickling errors, tracebacks with variables, log records of any level."""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from rich.pretty import pretty_repr
from rich.traceback import Traceback

from rmq_async import (
    ClientConfig,
    ConfigError,
    ConnectionLostError,
    Credentials,
    Hook,
    Message,
    Producer,
    PullConsumer,
    RocketMQError,
)
from rmq_async.transport import CloseReason
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.errors import LocalProtocolError
from rmq_protocol.signing import SIGNATURE, sign

from ..support import canaries
from ..support.canaries import SECRET_KEY, SECURITY_TOKEN, is_clean
from ..support.fakes import SENDS, Answer, Cluster, cut, refuse, silence
from ..support.instances import client_of

pytestmark = pytest.mark.virtual_time

KEYS = Credentials("alice", SECRET_KEY, SECURITY_TOKEN)


def forms(thing: object) -> str:
    """Everything a program may print of it."""
    return "\n".join([repr(thing), str(thing), f"{thing}", f"{thing!r:>300}", "%s %r" % (thing, thing), pretty_repr(thing)])  # noqa: UP031


def traceback_of(error: BaseException) -> str:
    """As rich shows it, with the variables of every function."""
    console = Console(file=io.StringIO(), width=9999)
    shown = Traceback.from_exception(
        type(error), error, error.__traceback__, width=9999, show_locals=True, locals_max_string=None, locals_max_length=None
    )
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "thing",
    [
        KEYS,
        [KEYS],
        {"keys": KEYS},
        ClientConfig(credentials=KEYS),
        Producer("group", credentials=KEYS),
        RemotingCommand(code=10, ext_fields={**sign(KEYS, {"a": "b"})}),
    ],
    ids=["Credentials", "list", "dict", "ClientConfig", "Producer", "RemotingCommand"],
)
def test_no_form_shows_a_secret(thing: object) -> None:
    assert is_clean(forms(thing))
    assert "alice" in forms(thing) or isinstance(thing, Producer)


def test_a_command_shows_its_fields_but_neither_signature_nor_token() -> None:
    signed = sign(KEYS, {"a": "b"})
    text = forms(RemotingCommand(code=10, ext_fields={**signed}, body=b"body"))
    assert "'a': 'b'" in text
    assert "body=b'body'" in text
    assert signed[SIGNATURE] not in text
    assert text.startswith("RemotingCommand(code=10, opaque=0, flag=0, remark=None, ext_fields={")


def test_pickling_carries_credentials_and_an_error_of_it_shows_none() -> None:
    assert pickle.loads(pickle.dumps(KEYS)) == KEYS
    for thing in (ClientConfig(credentials=KEYS, tls=ssl.create_default_context(cadata="")), Producer("g", credentials=KEYS)):
        with pytest.raises(Exception) as caught:
            pickle.dumps((KEYS, thing, lambda: None))
        assert is_clean(forms(caught.value))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Credentials("", SECRET_KEY),
        lambda: Credentials("\ud800", SECRET_KEY),
        lambda: Credentials("alice", SECRET_KEY.encode()),
        lambda: Credentials("alice", SECRET_KEY + "\udc80"),
        lambda: Credentials("alice", SECRET_KEY, SECURITY_TOKEN.encode()),
        lambda: Credentials("alice", SECRET_KEY, SECURITY_TOKEN + "\udc80"),
        lambda: ClientConfig(credentials=("alice", SECRET_KEY)),
        lambda: ClientConfig(credentials=SECRET_KEY),
        lambda: Producer("group", credentials=KEYS, tls_verify=False),
        lambda: Producer("group", credentials={"secret_key": SECRET_KEY}),
    ],
)
def test_a_refused_setting_shows_no_secret(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert is_clean(forms(caught.value))
    assert is_clean("".join(map(str, caught.value.args)))


def test_what_cannot_be_signed_shows_no_secret_even_in_tracebacks_with_variables() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        sign(KEYS, {"topic": "\udc80"})
    assert is_clean(traceback_of(caught.value))


def test_a_refused_secret_is_no_variable_of_ours() -> None:
    for keys in (("alice", SECRET_KEY + "\udc80"), ("alice", SECRET_KEY, SECURITY_TOKEN.encode())):
        with pytest.raises(ConfigError) as caught:
            Credentials(*keys)  # type: ignore[arg-type]
        own = caught.value.__traceback__
        assert own is not None
        while own.tb_next is not None:
            own = own.tb_next
            assert is_clean(repr(own.tb_frame.f_locals))


@pytest.mark.parametrize("call", ["send", "send_batch", "send_oneway"])
@pytest.mark.parametrize(
    "answer", [refuse(16, "check signature failed."), refuse(13), cut, silence], ids=["16", "13", "cut", "silent"]
)
async def test_no_error_of_a_signed_request_shows_a_secret(
    cluster: Cluster, call: str, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"timeout": 0.2, "request_timeout": 0.2, "retries": 1, "oneway_window": 1}
    async with Producer("group", namesrv=cluster.namesrv, credentials=KEYS, **options) as producer:
        await producer.send(Message("T", b"signed"))
        assert cluster.a.sends[0].fields["AccessKey"] == "alice"
        cluster.a.answer = answer
        with pytest.raises(RocketMQError) if call != "send_oneway" else contextlib.nullcontext() as caught:
            await getattr(producer, call)([Message("T", b"x")] if call == "send_batch" else Message("T", b"x"))
        if caught is not None:
            assert is_clean(forms(caught.value))
            assert is_clean(traceback_of(caught.value))
    if call == "send_oneway":
        (reported,) = [text for text in caplog.messages if "windows of one-way messages ended with an error" in text]
        assert is_clean(reported)


async def test_no_error_of_another_signed_request_shows_a_secret(cluster: Cluster) -> None:
    async with PullConsumer("group", namesrv=cluster.namesrv, credentials=KEYS, request_timeout=0.2) as consumer:
        cluster.a.silent = True  # nor anything else but sends is answered
        with pytest.raises(RocketMQError) as caught:
            await consumer.max_offset(cluster.queue())
        assert is_clean(forms(caught.value))
        shown = traceback_of(caught.value)
        assert "timeout = 0." in shown  # variables are shown
        assert is_clean(shown)


class _Closing(Hook):
    """Closes the connection that a request is about to take."""

    def __init__(self) -> None:
        self.pool: Any = None
        self.codes: set[int] = set()

    def before_request(self, address: str, command: RemotingCommand) -> None:
        if command.code in self.codes:
            self.pool.get(address).close(CloseReason.LOCAL)


async def test_a_connection_that_closes_under_a_signed_request_shows_no_secret(cluster: Cluster) -> None:
    hook = _Closing()
    async with Producer(
        "group", namesrv=cluster.namesrv, credentials=KEYS, timeout=0.2, retries=0, oneway_window=0, hooks=[hook]
    ) as producer:
        hook.pool = pool = (await client_of(producer)).pool
        hook.codes = {int(code) for code in SENDS} | {int(RequestCode.GET_MAX_OFFSET)}
        ask = RemotingCommand(code=RequestCode.GET_MAX_OFFSET, ext_fields={})
        item = Message("T", b"x")
        for call in (
            lambda: producer.send(item),
            lambda: producer.send(item, key="k"),
            lambda: producer.send_batch([item]),
            lambda: producer.send_oneway(item),
            lambda: pool.request(cluster.a.address, ask, 1.0),
        ):
            await producer.fetch_publish_queues("T")
            await pool.connect(cluster.a.address, 1.0)
            with pytest.raises(RocketMQError) as caught:
                await call()
            assert isinstance(caught.value.__cause__ or caught.value, ConnectionLostError)
            assert is_clean(traceback_of(caught.value))
            assert not caught.value.maybe_stored


def test_every_logger_of_the_client_is_looked_at() -> None:
    names = [name for name in logging.root.manager.loggerDict if name.startswith("rmq_")]
    assert "rmq_async.transport" in names
    plain = [name for name in names if type(logging.getLogger(name)) is not canaries.CanaryLogger]
    assert plain == []


def test_a_secret_in_a_record_of_any_level_is_found(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(canaries, "found", [])
    logger = logging.getLogger("rmq_async.transport")
    logger.debug("nothing %s", KEYS)
    assert canaries.found == []
    logger.debug("secret %s", SECRET_KEY)
    assert "test_secrets.py" in canaries.found[0]
    with contextlib.suppress(ValueError):
        try:
            raise ValueError(SECURITY_TOKEN)
        except ValueError:
            logger.exception("an error")
            raise
    assert len(canaries.found) == 2
    assert [record.levelno for record in caplog.records] == [
        logging.ERROR
    ]  # no call waits for this answer, so none gets the error
