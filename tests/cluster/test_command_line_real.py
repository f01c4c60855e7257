"""``rmq`` on real brokers of both versions, from a topic's creation to its deletion. Details are tested on the embedded broker."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import uuid
from typing import Any

import pytest

from rmq_async.cli.app import run_command
from rmq_async.testing.cluster import RealCluster

from ..cli.support import end, rmq, start


def test_from_a_topics_creation_to_its_deletion(
    each_cluster: RealCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", each_cluster.namesrv)

    def rmq(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
        ended = run_command([*arguments, "--timeout", "10", "--json"])
        output = capsys.readouterr()
        assert ended == code, output
        if code:
            (_,) = output.err.splitlines()
            assert output.out == ""
        else:
            assert output.err == ""
        return [json.loads(line) for line in output.out.splitlines()]

    topic = f"Cli_{uuid.uuid4().hex[:12]}"
    broker = each_cluster.brokers[0].name
    assert rmq("topic", "create", topic, "--queues", "2") == [{"topic": topic, "brokers": [broker]}]
    assert {"topic": topic} in rmq("topic", "list")
    (route,) = rmq("topic", "route", topic)
    assert (route["addresses"], route["write_queues"]) == ({"0": each_cluster.brokers[0].address}, 2)
    sent = rmq("send", topic, "--body", "x", "--keys", "k", "--count", "3", "--queue", f"{broker}:1")
    assert [(each["status"], each["queue_offset"]) for each in sent] == [("SEND_OK", number) for number in range(3)]
    pulled = rmq("pull", topic, "--from", "1h")
    assert [(each["msg_id"], each["body"], each["keys"]) for each in pulled] == [(each["msg_id"], "x", ["k"]) for each in sent]
    assert rmq("pull", topic, "--from", "1", "--to", "2", "--queue", f"{broker}:1") == pulled[1:2]
    assert [each["max_offset"] for each in rmq("topic", "offsets", topic)] == [0, 3]
    assert rmq("message", "view", topic, sent[0]["msg_id"]) == pulled[:1]
    assert rmq("message", "view", topic, sent[0]["offset_msg_id"]) == pulled[:1]
    assert rmq("message", "query", topic, "k", "--begin", "1h") == pulled
    rmq("message", "query", topic, "missing", code=1)
    rmq("message", "view", topic, "no-such-id", code=1)
    rmq("topic", "sync", "--from", broker, "--to", "broker-x", code=1)
    for mode, number in (("send", 500), ("batch", 640), ("async", 500)):
        *_, measured = rmq("bench", "--topic", topic, "--mode", mode, "--messages", str(number), "--in-flight", "8")
        assert (measured["acknowledged"], measured["stored"], measured["failed"]) == (number, number, 0)
    rmq("topic", "delete", topic)
    for command in (["topic", "route"], ["topic", "offsets"], ["pull"], ["topic", "delete"]):
        rmq(*command, topic, code=1)


async def test_a_pipe_copies_a_topic_and_a_group_consumes_the_copy(each_cluster: RealCluster) -> None:
    source, copy, where = f"Cli_{uuid.uuid4().hex[:12]}", f"Cli_{uuid.uuid4().hex[:12]}", ("--namesrv", each_cluster.namesrv)
    command = f'"{sys.executable}" -W error -m rmq_async.cli'
    steps = [
        f"{command} topic create {source} --queues 2 {' '.join(where)}",
        f"{command} topic create {copy} --queues 2 {' '.join(where)}",
        f"seq 50 | {command} send {source} - --tags t --keys k --property a=b {' '.join(where)}",
        f"{command} pull {source} --json {' '.join(where)} | {command} send {copy} --json --no-create {' '.join(where)} >&2",
        f"{command} pull {source} --json {' '.join(where)}",
    ]
    ended = await rmq(command=["sh", "-ec", " && ".join([*(f"{step} > /dev/null" for step in steps[:3]), *steps[3:]])])
    assert ended.code == 0, ended.err
    arguments = ("consume", copy, "--group", copy, "--from", "earliest", "--count", "50", "--json", *where)
    consumed = await rmq(*arguments)
    assert consumed.code == 0, consumed.err
    names = ("queue_id", "queue_offset", "body", "tags", "keys", "flag")
    facts = [
        sorted((*(str(record[name]) for name in names), record["properties"]["a"]) for record in records)
        for records in (ended.records, consumed.records)
    ]
    assert facts[0] == facts[1]
    assert len(facts[0]) == 50
    commanded = await rmq("consume", source, *arguments[2:-2], *where, "--exec", "exit 65", "--concurrency", "8")
    assert [each["outcome"] for each in commanded.records] == ["dead-letter"] * 50
    assert commanded.err.splitlines()[-1] == "rmq: 50 messages: 0 done, 0 to be tried again, 50 dead-lettered"
    topped = await rmq("top", "--once", "--json", "--interval", "0.3", "--filter", copy, *where)
    (figures,) = topped.records
    (topic,), (group,), brokers = figures["topics"], figures["groups"], figures["brokers"]
    assert (topic["topic"], topic["messages"], topic["queues"], topic["groups"]) == (copy, 50, 2, 1)
    assert (group["group"], group["lag"], group["members"], group["oldest"]) == (copy, 0, 0, None)
    assert [each["state"] for each in brokers] == ["up"] * len(each_cluster.brokers)
    assert brokers[0]["version"].startswith("V5_5" if "5.5" in str(each_cluster.version) else "V4_9")


async def test_top_shows_a_broker_that_is_away(two_brokers: RealCluster) -> None:
    process = await start("top", "--json", "--interval", "0.5", "--timeout", "1", "--namesrv", two_brokers.namesrv)
    gone = two_brokers.brokers[1]
    assert process.stdout is not None

    async def until(state: str) -> dict[str, Any]:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            while True:
                figures = json.loads(await process.stdout.readline())
                for broker in figures["brokers"]:
                    if broker["broker"] == gone.name and broker["state"] == state:
                        return dict(broker)

    try:
        assert (await until("up"))["problem"] is None
        gone.pause()
        assert (await until("away"))["problem"]
        gone.resume()
        await until("up")
        await gone.kill()
        assert (await until("away"))["problem"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert (await end(process)).code == 143
