"""``rmq bench``: what it counts is what the broker has, in every mode, and failures are reported and set the exit code."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import threading
from typing import Any

import pytest

from rmq_async.cli.bench.figures import Histogram, Part, failed, merged, percentiles
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

from .support import START, Ended, Rmq, end, group_of, left_after_kill, one_line, rmq, signals, start

TOPIC = "Bench"


def result_of(ended: Ended) -> dict[str, Any]:
    (found,) = [record for record in ended.records if record["type"] == "result"]
    return found


@pytest.mark.parametrize("mode", ["send", "async", "batch", "oneway"])
def test_a_number_of_messages_is_sent_and_stored(server: EmbeddedRocketMQ, rmq_here: Rmq, mode: str) -> None:
    topic = f"{TOPIC}_{mode}"
    arguments = ("--topic", topic, "--create", "--queues", "2", "--mode", mode, "--messages", "1000", "--body", "50")
    ended = rmq_here("bench", *arguments, "--in-flight", "16", "--json")
    assert (ended.code, ended.err) == (0, "")
    found = result_of(ended)
    assert (found["topic"], found["mode"], found["in_flight"], found["body"], found["processes"]) == (topic, mode, 16, 50, 1)
    assert found["messages"] == found["sent"] == found["stored"] == 1000
    assert found["acknowledged"] == (None if mode == "oneway" else 1000)
    assert (found["failed"], found["failures"]) == (0, {})
    assert 1000 / found["rate"] == pytest.approx(found["seconds"], abs=0.0006)  # given to the millisecond
    assert found["mb_per_s"] == pytest.approx(found["rate"] * 50 / 1e6, abs=0.002)
    assert found["client_cpu_us"] > 0
    latency = found["latency_ms"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]
    stored = server.messages(topic)
    assert len(stored) == 1000
    assert {len(message.body) for message in stored} == {50}
    assert {queue["broker"] for queue in rmq_here("topic", "offsets", topic, "--json").records} == {"broker-a", "broker-b"}


@pytest.mark.usefixtures("unhurried")
def test_a_time_is_kept_and_reported_for_each_second(rmq_here: Rmq) -> None:
    arguments = ("--topic", TOPIC, "--create", "--seconds", "1.2", "--warm-up", "0.5", "--in-flight", "2", "--timeout", "60")
    ended = rmq_here("bench", *arguments)
    assert ended.code == 0, ended.err
    assert {"messages/s" in line for line in ended.err.splitlines()} == {True}
    rate, cpu, latency, counts, stays = ended.out.splitlines()
    assert "messages/s" in rate
    assert "over 1.2 s" in rate
    assert cpu.startswith("client CPU: ")
    assert "p99.9" in latency
    assert counts.startswith("acknowledged: ")
    assert counts.endswith("failed: 0")
    assert stays == f"The messages are still in {TOPIC}."
    *progress, found = rmq_here("bench", *arguments, "--json").records
    assert {each["type"] for each in progress} == {"progress"}
    assert found["sent"] == found["stored"] > found["messages"] > 0  # those of the warm-up are stored too
    assert found["sent"] >= progress[-1]["sent"] > 0


async def test_two_processes_share_the_messages(server: EmbeddedRocketMQ) -> None:
    arguments = ("--topic", "Bench_two", "--create", "--messages", "301", "--processes", "2", "--in-flight", "4")
    ended = await rmq("bench", "--namesrv", server.namesrv, *arguments, "--json")
    assert (ended.code, ended.err) == (0, "")
    found = result_of(ended)
    assert (found["sent"], found["stored"], found["processes"]) == (301, 301, 2)
    assert len({message.born_host for message in server.messages("Bench_two")}) == 4  # two connections each


def test_a_topic_that_is_not_there_is_created_only_when_asked_to(rmq_here: Rmq) -> None:
    ended = rmq_here("bench", "--topic", "Bench_missing", "--messages", "1")
    assert (ended.code, ended.out) == (1, "")
    assert "Bench_missing" in one_line(ended.err)
    assert "Bench_missing" not in rmq_here("topic", "list").out


def test_failures_are_reported_by_text_and_are_code_1(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    assert rmq_here("topic", "create", "Bench_refused").code == 0
    server.fail_next(13, 10, request=RequestCode.SEND_MESSAGE_V2)  # MESSAGE_ILLEGAL: not retried
    ended = rmq_here("bench", "--topic", "Bench_refused", "--messages", "10", "--json")
    assert ended.code == 1
    found = result_of(ended)
    assert (found["failed"], found["sent"], found["stored"], found["client_cpu_us"]) == (10, 0, 0, None)
    assert set(found["latency_ms"].values()) == {None}
    assert sum(found["failures"].values()) == 10
    assert all("MESSAGE_ILLEGAL" in text for text in found["failures"]), found["failures"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--messages", "1"], "--topic"),
        (["--topic", "t", "--mode", "fast"], "--mode"),
        (["--topic", "t", "--messages", "5", "--seconds", "1"], "not both"),
        (["--topic", "t", "--messages", "1", "--processes", "2"], "too few"),
        (["--topic", "t", "--mode", "batch", "--batch", "5", "--body", "1048576"], "larger"),
        (["--topic", "t", "--mode", "batch", "--batch", "32", "--body", "131008"], "larger"),
        (["--topic", "t", "--body", "0"], "--body"),
        (["--topic", "t", "--namesrv", "here"], "host:port"),
        (["--topic", "t", "--seconds", "nan"], "--seconds"),
        (["--topic", "t", "--messages", "1", "--warm-up", "nan"], "--warm-up"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_line_and_code_2(wrong: list[str], says: str, rmq_here: Rmq) -> None:
    before = threading.enumerate()  # with the server's, and those of plugins of pytest
    ended = rmq_here("bench", *wrong)
    assert (ended.code, ended.out) == (2, "")
    assert says in one_line(ended.err)
    assert threading.enumerate() == before


# -- figures


def test_a_percentile_is_within_a_fiftieth_and_the_largest_exact() -> None:
    histogram = Histogram()
    for number in range(1, 1001):
        histogram.add(number / 1000)
    found = percentiles(Part(1000, 1.0, 1.0, 1000, {}, dict(histogram.counts), histogram.longest))
    for name, exact in (("p50", 500), ("p99", 990), ("p99.9", 999)):
        assert exact <= (found[name] or math.nan) <= exact * 1.021
    assert found["max"] == 1000
    histogram.add(0.0)  # a clock that did not move
    assert sum(histogram.counts.values()) == 1001


def test_parts_of_processes_that_ran_side_by_side_add_up() -> None:
    whole = merged(
        [Part(10, 2.0, 0.5, 12, {"a": 1}, {5: 10}, 0.1), Part(20, 1.0, 0.25, 20, {"a": 2, "b": 9}, {5: 1, 7: 2}, 0.3)]
    )
    assert whole == Part(30, 2.0, 0.75, 32, {"b": 9, "a": 3}, {5: 11, 7: 2}, 0.3)


def test_texts_of_failures_are_bounded() -> None:
    failures: dict[str, int] = {}
    for number in range(100):
        failed(failures, ValueError(f"id\n {number}"), 2)
    assert len(failures) == 21
    assert failures["ValueError: id 0"] == 2
    assert sum(failures.values()) == 200


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(
    ("processes", "number", "code"),
    [
        pytest.param(processes, *each.values, marks=each.marks)
        for processes, first in (("1", signal.SIGINT), ("2", signal.SIGTERM))
        for each in signals(first)
    ],
)
async def test_a_signal_ends_it_with_the_figures_so_far(
    number: signal.Signals, code: int, processes: str, server: EmbeddedRocketMQ
) -> None:
    arguments = ("--topic", f"Ended{code}{processes}", "--create", "--in-flight", "4", "--processes", processes, "--json")
    process = await start("bench", *arguments, "--namesrv", server.namesrv, "--warm-up", "0.1", "--seconds", "600")
    assert process.stdout is not None
    assert b"progress" in await asyncio.wait_for(process.stdout.readline(), 60)
    process.send_signal(number)
    ended = await end(process)
    assert (ended.code, ended.err) == (code, "")
    found = result_of(ended)
    assert 0 < found["acknowledged"] == found["stored"]
    assert 0 < found["seconds"] < 600


@pytest.mark.usefixtures("unhurried")
def test_processes_end_with_a_parent_that_is_killed(server: EmbeddedRocketMQ) -> None:
    arguments = ("--topic", "Orphans", "--create", "--in-flight", "4", "--processes", "2", "--json", "--seconds", "600")
    command = [*START, "bench", *arguments, "--namesrv", server.namesrv]
    with group_of(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"progress" in process.stdout.readline()
        assert left_after_kill(process, 60.0) == []
