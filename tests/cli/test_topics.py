"""``rmq topic``: what goes in comes out again, for people and as JSON, and what is not there is one line."""

from __future__ import annotations

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from .support import Rmq, one_line


def test_a_topic_from_creation_to_deletion(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    assert rmq_here("topic", "create", "Life", "--queues", "2", "--read-queues", "3") == (
        0,
        "Life is on broker-a, broker-b\n",
        "",
    )
    assert "Life" in rmq_here("topic", "list").out.splitlines()
    assert {"topic": "Life"} in rmq_here("topic", "list", "--json").records
    theirs = ("TBW102", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "broker-a", "%RETRY%life")
    assert rmq_here("group", "create", "life").code == 0
    assert rmq_here("topic", "create", "%RETRY%life").code == 0
    assert not {*theirs} & {*rmq_here("topic", "list").out.splitlines()}
    assert {*theirs} <= {*rmq_here("topic", "list", "--system").out.splitlines()}

    (first, second) = rmq_here("topic", "route", "Life", "--json").records
    assert first == {
        "topic": "Life",
        "broker": "broker-a",
        "cluster": "DefaultCluster",
        "addresses": {"0": server.brokers["broker-a"]},
        "write_queues": 2,
        "read_queues": 3,
        "perm": 6,
        "order_conf": None,
    }
    assert second["broker"] == "broker-b"
    heading, *rows = rmq_here("topic", "route", "Life").out.splitlines()
    assert heading.split() == ["broker", "cluster", "addresses", "write", "read", "perm"]
    assert rows[0].split() == ["broker-a", "DefaultCluster", f"0={server.brokers['broker-a']}", "2", "3", "both"]

    assert rmq_here("send", "Life", "--body", "x", "--queue", "broker-b:1").code == 0
    offsets = rmq_here("topic", "offsets", "Life", "--json").records
    assert [(each["broker"], each["queue_id"]) for each in offsets] == [(f"broker-{b}", n) for b in "ab" for n in range(3)]
    assert [each["max_offset"] for each in offsets] == [0, 0, 0, 0, 1, 0]
    heading, *rows = rmq_here("topic", "offsets", "Life").out.splitlines()
    assert heading.split() == ["queue", "first", "next", "messages", "last"]
    assert rows[4].split()[:4] == ["broker-b:1", "0", "1", "1"]
    assert rows[0].split()[-1] == "-"

    assert rmq_here("topic", "delete", "Life") == (0, "Life is deleted\n", "")
    for command in (["route"], ["offsets"], ["delete"]):
        ended = rmq_here("topic", *command, "Life")
        assert (ended.code, ended.out) == (1, "")
        assert "Life" in one_line(ended.err)


def test_rows_of_a_table_are_whole_in_a_pipe(rmq_here: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    name = "Long" * 30
    assert rmq_here("topic", "create", name, "--broker", "broker-a", "--queues", "1").code == 0
    heading, row = rmq_here("topic", "route", name).out.splitlines()
    assert heading.split() == ["broker", "cluster", "addresses", "write", "read", "perm"]
    assert row.split()[0::5] == ["broker-a", "both"]
    would = rmq_here("topic", "sync", "--from", "broker-a", "--to", "broker-b", "--topics", name, "--dry-run")
    assert would.out.splitlines()[1].split() == [name, "create", "1", "1", "both"]


def test_settings_of_a_topic(rmq_here: Rmq) -> None:
    arguments = ("--broker", "broker-b", "--perm", "4", "--attribute", "message.type=FIFO", "--order", "--json")
    assert rmq_here("topic", "create", "Settings", *arguments).records == [{"topic": "Settings", "brokers": ["broker-b"]}]
    (only,) = rmq_here("topic", "route", "Settings", "--json").records
    assert (only["broker"], only["perm"], only["write_queues"]) == ("broker-b", 4, 8)


def test_topics_are_copied_to_a_broker(rmq_here: Rmq) -> None:
    for name in ("copy_one", "copy_two", "stays"):
        assert rmq_here("topic", "create", name, "--broker", "broker-a", "--queues", "2").code == 0
    would = rmq_here("topic", "sync", "--from", "broker-a", "--to", "broker-b", "--topics", "copy_*", "--dry-run")
    assert [line.split()[:3] for line in would.out.splitlines()[1:-1]] == [
        ["copy_one", "create", "2"],
        ["copy_two", "create", "2"],
    ]
    assert would.out.splitlines()[-1] == "Nothing was done."
    done = rmq_here("topic", "sync", "--from", "broker-a", "--to", "broker-b", "--topics", "copy_*", "--json").records
    assert [(each["topic"], each["action"], each["done"]) for each in done] == [
        ("copy_one", "create", True),
        ("copy_two", "create", True),
    ]
    assert len(rmq_here("topic", "route", "copy_one", "--json").records) == 2
    assert len(rmq_here("topic", "route", "stays", "--json").records) == 1
    ended = rmq_here("topic", "sync", "--from", "broker-a", "--to", "broker-x")
    assert (ended.code, ended.out) == (1, "")
    assert "broker-x" in one_line(ended.err)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["topic", "create", "no spaces"], "no spaces"),
        (["topic", "create", "TBW102"], "reserved"),
        (["topic", "create", "t", "--perm", "5"], "--perm"),
        (["topic", "create", "t", "--queues", "0"], "--queues"),
        (["topic", "create", "t", "--attribute", "x"], "NAME=VALUE"),
        (["topic", "create", "t", "--namesrv", ""], "names no server"),
        (["topic", "create", "t", "--namesrv", " ; "], "names no server"),
        (["topic", "list", "--namesrv", "here"], "host:port"),
        (["topic", "sync", "--from", "broker-a", "--to", "broker-a"], "itself"),
        (["topic", "sync", "--from", "broker-a"], "--to"),
        (["topic", "nothing"], "nothing"),
        (["topic", "list", "surplus"], "surplus"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_line_and_code_2(wrong: list[str], says: str, rmq_here: Rmq) -> None:
    ended = rmq_here(*wrong)
    assert (ended.code, ended.out) == (2, "")
    assert says in one_line(ended.err)


def test_a_cluster_that_is_not_there_is_code_1(rmq_here: Rmq) -> None:
    ended = rmq_here("topic", "list", "--namesrv", "127.0.0.1:1", "--timeout", "0.2")
    assert (ended.code, ended.out) == (1, "")
    assert "127.0.0.1:1" in one_line(ended.err)


def test_without_name_servers_the_line_says_where_they_are_given(rmq_here: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", ";"):
        if value is None:
            monkeypatch.delenv("NAMESRV_ADDR")
        else:
            monkeypatch.setenv("NAMESRV_ADDR", value)
        ended = rmq_here("topic", "list")
        assert ended.code == 2
        assert "--namesrv" in one_line(ended.err)


def test_a_group_without_a_command_shows_its_help(rmq_here: Rmq) -> None:
    for group in ("topic", "message"):
        ended = rmq_here(group)
        assert (ended.code, ended.out) == (2, "")
        assert "Commands:" in ended.err
