"""Credentials that change while a query runs."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rmq_async import Credentials, MessageQueue
from rmq_async.errors import AuthenticationError, ConfigError
from rmq_async.spark import renewal
from rmq_async.spark.cluster import Cluster
from rmq_async.spark.connection import Access
from rmq_async.spark.options import read_options
from rmq_async.spark.worker import SparkReader, worker
from rmq_async.testing import ThreadedRocketMQ

from .scripted import worker_of_its_own

GIVEN: list[Any] = []
"""What ``provide`` returns, the next one first; the last one stays. An exception is raised."""


def provide() -> Any:
    answer = GIVEN.pop(0) if len(GIVEN) > 1 else GIVEN[0]
    if isinstance(answer, BaseException):
        raise answer
    return answer


def wrong() -> Any:
    """Has never given any credentials."""
    return provide()


GATE = threading.Event()
"""What ``slow`` waits for."""


def slow() -> Any:
    """Used by one test."""
    answer = provide()
    assert GATE.wait(60)
    return answer


def renewed() -> Any:
    """Used by one test: what it has given before is kept."""
    return provide()


def access(**options: str) -> Access:
    return read_options({"nameserver": "127.0.0.1:9", "topic": "t", **options}, streaming=False).access


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of ``renewal``."""
    clock = [1000.0]
    monkeypatch.setattr(renewal, "monotonic", lambda: clock[0])
    return clock


def write(path: Path, user: str, **more: str) -> None:
    path.write_text(json.dumps({"accessKey": user, "secretKey": "hush", **more}))


def test_file_is_read_at_each_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = tmp_path / "keys.json"
    given = access(credentialsFile=str(keys))
    with pytest.raises(ConfigError, match=r"option credentialsFile: .*keys\.json cannot be read on this machine: No such file"):
        renewal.current(given)
    write(keys, "alice")
    assert renewal.current(given).access_key == "alice"
    write(keys, "bob", securityToken="of today")
    found = renewal.current(given)
    assert (found.access_key, found.secret_key, found.security_token, found.credentials_file) == (
        "bob",
        "hush",
        "of today",
        None,
    )
    keys.unlink()
    assert renewal.current(given) == found, "the last ones serve on"
    assert "the previous credentials are used again: option credentialsFile" in caplog.text
    assert renewal.current(access()) == access()


def test_function_that_does_not_return_is_waited_for_once(
    now: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(renewal, "LONGEST", 0.3)
    given = access(credentialsProvider=f"{__name__}:slow")
    GIVEN[:] = [("alice", "hush")]
    GATE.clear()
    with pytest.raises(
        ConfigError, match=r"option credentialsProvider: .*slow has not returned in 0\.3 s; check the file system"
    ):
        renewal.current(given)
    GATE.set()
    assert renewal.current(given).access_key == "alice"
    GATE.clear()
    GIVEN[:] = [("bob", "hush")]
    now[0] += 31
    began = monotonic()
    assert [renewal.current(given).access_key for _ in range(20)] == ["alice"] * 20
    assert 0.3 <= monotonic() - began < 3.0, "only the first call waits; twenty would take 6 s"
    assert caplog.text.count("has not returned in 0.3 s") == 1
    GATE.set()
    now[0] += 1
    deadline = monotonic() + 60
    while renewal.current(given).access_key != "bob":
        assert monotonic() < deadline


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hush", "holds no JSON"),
        ("[]", "must hold one JSON object of accessKey, secretKey and, if any, securityToken"),
        ('{"accessKey": "a"}', "must hold one JSON object of"),
        ('{"accessKey": "a", "secretKey": "hush", "password": "hush"}', "must hold one JSON object of"),
        ('{"accessKey": "a", "secretKey": ""}', "option credentialsFile: secret_key must be a non-empty str"),
        ('{"accessKey": 5, "secretKey": "hush"}', "option credentialsFile: access_key must be a non-empty str"),
    ],
)
def test_wrong_file_is_named_and_not_shown(text: str, expected: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(text)
    with pytest.raises(ConfigError) as caught:
        renewal.current(access(credentialsFile=str(keys)))
    assert expected in str(caught.value)
    assert "hush" not in str(caught.value)


def test_function_is_asked_each_half_minute(now: list[float], caplog: pytest.LogCaptureFixture) -> None:
    given = access(credentialsProvider=f"{__name__}:provide")
    GIVEN[:] = [("alice", "hush"), Credentials("bob", "hush", "t"), OSError("hush"), ("carol", "hush", "u")]
    users = []
    for seconds in (0, 29, 2, 31, 31):
        now[0] += seconds
        users.append(renewal.current(given).access_key)
    assert users == ["alice", "alice", "bob", "bob", "carol"]
    assert "provide raised OSError" in caplog.text
    assert "hush" not in caplog.text
    GIVEN[:] = [("dave", "hush")]
    assert renewal.current(given).access_key == "carol"
    assert renewal.forget(given)
    assert renewal.current(given).access_key == "dave", "refused ones are asked for anew"
    assert not renewal.forget(access())


@pytest.mark.parametrize(
    ("name", "answer", "expected"),
    [
        (
            f"{__name__}:nothing",
            None,
            "cannot be imported on this machine (AttributeError); it must be on driver and executors",
        ),
        ("no.such.module:function", None, "cannot be imported on this machine (ModuleNotFoundError)"),
        (f"{__name__}:wrong", {"accessKey": "a"}, "must return Credentials or a tuple of 2 or 3 strings, not dict"),
        (f"{__name__}:wrong", ("a", ""), "option credentialsProvider: secret_key must be a non-empty str"),
        (f"{__name__}:wrong", ValueError("hush"), "raised ValueError"),
    ],
)
def test_wrong_function_is_named(name: str, answer: Any, expected: str) -> None:
    GIVEN[:] = [answer]
    with pytest.raises(ConfigError) as caught:
        renewal.current(access(credentialsProvider=name))
    assert expected in str(caught.value)
    assert "hush" not in str(caught.value)


def test_module_that_fails_is_named_and_its_text_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_secrets.py").write_text('raise RuntimeError("hush")\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        renewal.current(access(credentialsProvider="failing_secrets:current"))
    assert "failing_secrets:current cannot be imported on this machine (RuntimeError)" in str(caught.value)
    assert "hush" not in str(caught.value)
    assert caught.value.__suppress_context__, "no traceback shows it either"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"credentialsFile": "k", "credentialsProvider": "a:b"}, "options credentialsFile and credentialsProvider contradict"),
        ({"credentialsFile": "k", "accessKey": "a", "secretKey": "s"}, "credentials are given twice"),
        ({"credentialsProvider": "shop"}, "option credentialsProvider must be module:function, not 'shop'"),
        ({"credentialsProvider": "shop:a b"}, "option credentialsProvider must be module:function"),
    ],
)
def test_contradictions(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        access(**options)


def test_environment_does_not_join_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_ACCESS_KEY", "environment")
    monkeypatch.setenv("RMQ_SECRET_KEY", "hush")
    assert access(credentialsFile="k").access_key is None


def test_planner_whose_credentials_are_refused_asks_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def queues(reader: SparkReader, topic: str) -> tuple[MessageQueue, ...]:
        credentials = reader.instance.config.credentials
        assert credentials is not None
        asked.append(credentials.access_key)
        if credentials.access_key != "dora":
            raise AuthenticationError("the signature does not match")
        return (MessageQueue(topic, "b", 0),)

    monkeypatch.setattr(SparkReader, "queues", queues)
    with worker_of_its_own(), ThreadedRocketMQ() as server:
        options = {"nameserver": server.namesrv, "topic": "t", "credentialsProvider": f"{__name__}:renewed"}
        cluster = Cluster(read_options(options, streaming=True))
        GIVEN[:] = [("carl", "hush"), ("dora", "hush")]
        assert cluster.queues() == cluster.queues() == (MessageQueue("t", "b", 0),)
        assert asked == ["carl", "dora", "dora"]
        GIVEN[:] = [("emil", "hush"), ("fred", "hush")]
        renewal.forget(access(credentialsProvider=f"{__name__}:renewed"))
        with pytest.raises(AuthenticationError):
            cluster.queues()
        assert asked[3:] == ["emil", "fred"], "no more than once"


def test_new_credentials_are_another_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is pickled holds no secret; the same credentials are the same client."""
    keys = tmp_path / "keys.json"
    caplog.set_level(logging.ERROR)
    with worker_of_its_own(), ThreadedRocketMQ() as server:
        given = access(credentialsFile=str(keys), nameserver=server.namesrv)
        write(keys, "alice")
        here = worker()
        first = here.reader(given, "g")
        assert here.reader(given, "g") is first
        write(keys, "bob")
        second = here.reader(given, "g")

        async def credentials() -> list[Credentials | None]:
            return [each.instance.config.credentials for each in (first, second)]

        assert here.run(credentials()) == [
            Credentials("alice", "hush"),
            Credentials("bob", "hush"),
        ]
    assert b"hush" not in pickle.dumps(given)
    assert "hush" not in repr(given)
