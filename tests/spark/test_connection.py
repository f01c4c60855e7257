"""How a process of Spark reaches its cluster: what travels to it, and the clients that it makes, keeps and loses."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import ClientStateError, ConfigError, NameServerError
from rmq_async.spark import worker as workers
from rmq_async.spark.connection import Access, access_of, client_config
from rmq_async.spark.options import read_options, write_options
from rmq_async.spark.worker import worker
from rmq_protocol.constants import RequestCode
from rmq_protocol.message import MessageQueue

from .conftest import Topics
from .scripted import worker_of_its_own

HUSH = "hush-hush"
BARE: dict[str, Any] = {
    "nameserver": "a:1", "access_key": None, "secret_key": None, "security_token": None, "tls": False, "tls_verify": True,
    "files": (None, None, None), "server_name": None, "namespace": None, "namespace_v2": None, "request_timeout": 3.0,
    "vip_channel": False,
}  # fmt: skip


def access(**given: Any) -> Access:
    options = {**BARE, **given}
    return access_of(options.pop("nameserver"), Access(**options))


class TestAccess:
    def test_secrets_come_from_options_or_the_environment_and_are_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RMQ_ACCESS_KEY", "of-environment")
        monkeypatch.setenv("RMQ_SECRET_KEY", HUSH)
        monkeypatch.setenv("RMQ_SECURITY_TOKEN", HUSH + "2")
        found = access()
        credentials = client_config(pickle.loads(pickle.dumps(found))).credentials
        assert credentials is not None
        assert (credentials.access_key, credentials.secret_key, credentials.security_token) == (
            "of-environment",
            HUSH,
            HUSH + "2",
        )
        assert HUSH not in repr(found) + str(found) + repr(credentials) + repr(client_config(found))
        given = access(access_key="mine", secret_key="other")
        assert (given.access_key, given.secret_key) == ("mine", "other")
        options = {"nameserver": "a:1", "topic": "t", "accessKey": "k", "secretKey": HUSH}
        assert HUSH not in repr(read_options(options, streaming=True)) + repr(write_options(options, streaming=True))

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"access_key": "k"}, "the access key needs its secret: give the option secretKey or set RMQ_SECRET_KEY"),
            ({"secret_key": "s"}, "options secretKey and securityToken need accessKey; give it too"),
            ({"files": (None, None, "key")}, "option tlsKeyFile is the key of tlsCertFile, which is missing"),
            ({"tls_verify": False}, "option tlsVerify needs tls=true; give both, or leave it out"),
            ({"server_name": "x"}, "option tlsServerName needs tls=true; give both, or leave it out"),
            (
                {"tls_verify": False, "files": ("ca", None, None)},
                "option tlsCaFile verifies servers, tlsVerify=false",
            ),
            ({"nameserver": "nowhere"}, "a name server's address must be host:port, not 'nowhere'"),
        ],
    )
    def test_contradictions(self, given: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RMQ_SECRET_KEY", raising=False)
        with pytest.raises(ConfigError, match=expected):
            access(**given)

    def test_files_are_opened_where_they_are_used(self, tmp_path: Path) -> None:
        missing = access(files=(str(tmp_path / "ca.pem"), None, None))
        assert missing.tls
        with pytest.raises(ConfigError, match=r"ca\.pem cannot be used: .*; TLS needs PEM files"):
            client_config(missing)
        plain = client_config(access(tls=True, tls_verify=False))
        assert (plain.tls, plain.tls_verify) == (True, False)
        trustme = pytest.importorskip("trustme")
        made = trustme.CA()
        made.cert_pem.write_to_path(tmp_path / "ca.pem")
        context = client_config(missing).tls
        assert isinstance(context, ssl.SSLContext)
        assert context.verify_mode is ssl.CERT_REQUIRED


@pytest.fixture
def alone() -> Iterator[None]:
    with worker_of_its_own():
        yield


async def first_offset(reader: workers.SparkReader, topic: str) -> int:
    return await reader.min_offset(MessageQueue(topic, "broker-a", 0))


def in_a_child(work: Any) -> str:
    """What ``work`` returns in a forked child, or that it hung or failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            os.write(writing, str(work()).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        read = pipe.read()
    _, status = os.waitpid(child, 0)
    return read if status == 0 else f"{read} status {status}"


def connections_to(port: int) -> int:
    found = psutil.Process().net_connections(kind="tcp")
    return sum(bool(each.raddr) and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED for each in found)


def few(count: Callable[[], int], most: int) -> bool:
    """Whether it becomes so within a minute."""
    deadline = time.monotonic() + 60
    while count() > most and time.monotonic() < deadline:
        time.sleep(0.02)
    print(f"{count()} of at most {most}")
    return count() <= most


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
class TestWorker:
    def test_clients_are_made_at_need_kept_and_made_anew(self, embedded_topics: Topics) -> None:
        topic = embedded_topics.make(1)
        here = access(nameserver=embedded_topics.namesrv)
        assert worker() is worker()
        one = worker().reader(here, "group")
        assert worker().reader(pickle.loads(pickle.dumps(here)), "group") is one
        assert worker().reader(here, "other") is not one
        assert worker().run(first_offset(one, topic)) == 0
        again = worker().reader(here, "group", fresh=True)
        assert again is not one
        with pytest.raises(ClientStateError):
            one.instance  # noqa: B018
        assert worker().run(first_offset(again, topic)) == 0
        threads = threading.active_count()
        worker().close()
        assert threading.active_count() == threads - 1
        with pytest.raises(ClientStateError):
            again.instance  # noqa: B018

    def test_clients_of_old_credentials_go(self, embedded_topics: Topics) -> None:
        """30 reads with a new token each: a process keeps few clients."""
        topic = embedded_topics.make(1)
        here, port = worker(), int(embedded_topics.namesrv.rpartition(":")[2])
        for number in range(30):
            token = {"access_key": "k", "secret_key": HUSH, "security_token": f"{HUSH}{number}"}
            reader = here.reader(access(nameserver=embedded_topics.namesrv, **token), "group")
            assert here.run(first_offset(reader, topic)) == 0
        assert few(lambda: connections_to(port), workers.MOST)
        assert here.run(first_offset(reader, topic)) == 0

    def test_unused_clients_go_at_next_task(self, embedded_topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
        topic = embedded_topics.make(1)
        monkeypatch.setattr(workers, "IDLE", 0.05)
        here, address = worker(), access(nameserver=embedded_topics.namesrv)
        busy, unused = here.reader(address, "busy"), here.reader(address, "unused")
        with here.using(busy):
            time.sleep(0.1)
            newest = here.reader(address, "newest")
            assert here.run(first_offset(busy, topic)) == 0
            with pytest.raises(ClientStateError):
                here.run(first_offset(unused, topic))
        time.sleep(0.1)
        here.reader(address, "another")
        for gone in (busy, newest):
            with pytest.raises(ClientStateError):
                here.run(first_offset(gone, topic))

    @pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
    def test_loop_outlives_interrupts(self, ending: type[BaseException]) -> None:
        async def interrupted() -> None:
            raise ending

        async def sound() -> int:
            return 17

        here = worker()
        with pytest.raises(ending):
            here.start(interrupted()).result(60)
        assert here.start(sound()).result(60) == 17

    def test_closed_worker_does_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workers, "LOOK_EVERY", 0.1)
        here = worker()
        here.close()

        async def nothing() -> None:
            pass

        work = nothing()
        with pytest.raises(ClientStateError, match="the worker of this process was closed"):
            here.run(work)
        work.close()

    def test_a_name_server_that_is_not_there_is_reported_soon_and_asked_again(self, embedded_topics: Topics) -> None:
        nowhere = access(nameserver="127.0.0.1:1")
        for _ in range(2):
            with pytest.raises(NameServerError, match=r"127\.0\.0\.1:1"):
                worker().reader(nowhere, "group")

    def test_a_forked_child_has_its_own(self, embedded_topics: Topics) -> None:
        """Also one that was forked while the parent made something: its locks are held for ever there."""
        topic = embedded_topics.make(1)
        here = access(nameserver=embedded_topics.namesrv)
        parents = worker()
        parents.reader(here, "group")

        def child() -> str:
            mine = worker()
            reader = mine.reader(here, "group")
            return f"{mine is parents} {mine.run(first_offset(reader, topic))}"

        with ExitStack() as held:
            held.enter_context(workers._making)  # noqa: SLF001
            held.enter_context(parents._lock)  # noqa: SLF001
            assert in_a_child(child) == "False 0"
        assert parents.run(first_offset(parents.reader(here, "group"), topic)) == 0

    def test_a_killed_reader_leaves_nothing_on_brokers(self) -> None:
        """They never heard of it but by its pulls and questions."""

        async def run() -> None:
            async with EmbeddedRocketMQ() as servers:
                async with Producer("p", namesrv=servers.namesrv) as producer:
                    await producer.send(Message("t", b"x"))
                before = servers.requests[RequestCode.HEART_BEAT], servers.requests[RequestCode.UNREGISTER_CLIENT]

                def child() -> str:
                    here = worker()
                    reader = here.reader(access(nameserver=servers.namesrv), "group")
                    queues = here.run(reader.queues("t"))
                    found = [here.run(reader.pull(queue, 0)).messages for queue in queues]
                    return str(sum(map(len, found)))

                assert await asyncio.to_thread(in_a_child, child) == "1"
                assert (servers.requests[RequestCode.HEART_BEAT], servers.requests[RequestCode.UNREGISTER_CLIENT]) == before

        asyncio.run(run())

    def test_a_level_that_somebody_chose_stays(self) -> None:
        logging.getLogger("rmq_async").setLevel(logging.INFO)
        worker()
        assert logging.getLogger("rmq_async").level == logging.INFO
