"""The benchmark of sends: its options, one small run against the embedded broker, and the fairness of its bare loop."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.batch import decode_batch
from rmq_protocol.command import RemotingCommand, decode_command
from rmq_protocol.frame import FrameDecoder
from rmq_protocol.properties import decode_properties
from rmq_protocol.send_codec import FIRST_OPAQUE, SendTemplate

from ..support.benchmark_runs import BENCHMARKS, run

MODES = ("depth-1", "depth-64", "batch-1", "batch-8", "adaptive-64", "async-64", "oneway")


@pytest.fixture
def bare_loop(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from support import bare_loop

    return bare_loop


def test_help_names_modes_and_options(program: Callable[..., Any]) -> None:
    code, out, error = program("send.py", "--help")
    assert (code, error) == (0, "")
    for word in (*MODES, "--body", "--rounds", "--seconds", "--loop", "--namesrv", "--json"):
        assert word in out


async def test_the_benchmark_of_spark_says_what_it_takes_and_refuses_the_rest(program: Callable[..., Any]) -> None:
    code, out, error = await run("spark.py", "--help")
    assert (code, error) == (0, "")
    for word in ("--messages", "--body", "--rounds", "--parts", "--tuned", "--namesrv", "--json", "--check"):
        assert word in out
    code, out, error = program("spark.py", "--parts", "read,delete")
    assert (code, out) == (2, "")
    assert "delete; there are read, write, stream" in error
    code, _, error = program("spark.py", "--tuned", "--namesrv", "a:1")
    assert (code, "--tuned is of a broker of our own" in error) == (2, True)


def test_spark_ratios_beyond_limits_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from support import spark_report

    rates = {"generator": [300.0], "plain pull": [100.0], "read": [90.0], "narrowed read": [180.0]}
    result = {"rates": rates, "ratios": spark_report.ratios(rates), "facts": {"worker growth, MiB": 151.0}}
    found = spark_report.beyond_limits(result)
    assert [each.partition(":")[0].partition(" by ")[0] for each in found] == [
        "read, of the lower of generator and plain pull",
        "a worker grew",
    ]
    assert "x 0.90" in found[0]
    assert "narrowed read, of the read of all columns" in spark_report.table(result)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(("--modes", "depth-1,depth-2"), "depth-2"), (("--rounds", "0"), "must be above 0"), (("--modes", ""), "none given")],
)
def test_an_option_that_cannot_work_is_refused(arguments: tuple[str, ...], reason: str, program: Callable[..., Any]) -> None:
    code, out, error = program("send.py", *arguments)
    assert (code, out) == (2, "")
    assert reason in error


def test_no_name_server_is_one_line_and_no_traceback(program: Callable[..., Any]) -> None:
    code, out, error = program("send.py", "--namesrv", "127.0.0.1:1")
    assert (code, out) == (2, "")
    assert error.startswith("send.py: ")
    assert "Traceback" not in error


async def test_a_small_run_measures_every_mode_on_both_sides(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    async with EmbeddedRocketMQ() as server:
        bounds = ("--rounds", "1", "--seconds", "0.1", "--warm-up", "0.02", "--max-gb", "0.03")
        modes = ("--modes", ",".join(MODES))
        pid = ("--broker-pid", str(os.getpid()))
        code, out, error = await run("send.py", "--namesrv", server.namesrv, *pid, *bounds, *modes, "--json", str(file))
    assert code == 0, error
    assert "Warning" not in error
    document = json.loads(file.read_bytes())
    assert document["settings"]["body"] == 128
    assert document["settings"]["modes"] == list(MODES)
    assert document["machine"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert set(document["modes"]) == set(MODES)
    assert len(document["runs"]) == 2 * len(MODES)
    for mode, figures in document["modes"].items():
        assert figures["rounds"] == 1
        for side in ("ours", "bare"):
            check_side(mode, figures[side])
            assert f"  {side} " in out
        for name in ("client_cpu_ratio", "rate_ratio"):
            ratio = figures[name]
            assert ratio["min"] <= ratio["median"] <= ratio["max"]
            assert sorted(ratio["rounds"])[0] == ratio["min"] > 0
    for each in document["runs"]:
        assert each["stored"] == each["total"] >= each["messages"] > 0
        assert each["rate"] == pytest.approx(each["messages"] / each["seconds"])


def check_side(mode: str, figures: dict[str, object]) -> None:
    assert figures["failures"] == {}
    assert figures["stored"] == figures["acknowledged"]
    wanted = ["rate", "client_us", "client_user_us", "broker_us", "messages_per_write", "rss_mb", "client_cores", "other_cores"]
    if mode != "oneway":
        wanted += ["p50_us", "p99_us"]
        assert figures["p50_us"] <= figures["p99_us"]  # type: ignore[operator]
    for name in wanted:
        assert isinstance(figures[name], int | float), name
        assert figures[name] >= 0, name  # type: ignore[operator]


async def test_failed_sends_are_named_and_end_with_code_1() -> None:
    async with EmbeddedRocketMQ() as server:
        server.fail_next(13, 1_000_000, request=310)  # MESSAGE_ILLEGAL: not retried
        bounds = ("--rounds", "1", "--seconds", "0.1", "--warm-up", "0", "--max-gb", "0.01", "--modes", "depth-1")
        code, out, error = await run("send.py", "--namesrv", server.namesrv, *bounds)
    assert code == 1
    assert "await send, 1 in flight" in out
    assert "depth-1, ours: failed: " in error
    assert "depth-1, bare: failed: " in error


def test_acknowledged_and_not_stored_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import send
    from support import runs

    figures = dict.fromkeys(("client_us", "client_user_us", "rss_mb", "client_cores", "busy_cores", "rate", "seconds"), 1.0)
    unknown = dict.fromkeys(("broker_us", "broker_cores", "p50_us", "p99_us", "p999_us", "max_us", "messages_per_write"))

    def result(mode: str, side: str, stored: int) -> runs.RunResult:
        return runs.RunResult(side=side, mode=mode, messages=10, total=10, stored=stored, failures={}, **figures, **unknown)

    def rounds(mode: str, side: str, stored: int) -> list[dict[str, dict[str, runs.RunResult]]]:
        return [{mode: {side: result(mode, side, stored)}}]

    assert send.void_runs(rounds("depth-1", "ours", 10)) == []
    assert send.void_runs(rounds("depth-1", "bare", 9)) == ["depth-1, bare: 10 acknowledged, 9 stored"]
    assert send.void_runs(rounds("oneway", "ours", 9)) == ["oneway, ours: 10 acknowledged, 9 stored"]
    assert send.void_runs(rounds("oneway", "bare", 9)) == []


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("queue", [0, 7])
def test_the_bare_loop_writes_the_frames_that_the_client_writes(bare_loop: ModuleType, batch: bool, queue: int) -> None:
    topic, group, broker, body = "Some%Topic", "some_group", "broker-a", b"x" * 128
    bare = bare_loop.BareProducer(topic, group=group)
    template = bare._template(bare_loop.Route(broker, "127.0.0.1:1", 8), queue, 320 if batch else 310)  # noqa: SLF001
    if batch:
        content = bare._batched(body) + bare._batched(body)  # noqa: SLF001
        pattern, length = template
        frame = pattern % ((length + len(content)).to_bytes(4, "big"), bare._born, FIRST_OPAQUE, content)  # noqa: SLF001
        properties = "WAIT\x01true\x02"
    else:
        content = body
        frame = bare._frame(template, FIRST_OPAQUE, content)  # noqa: SLF001
        properties = f"UNIQ_KEY\x01{'0' * 32}\x02WAIT\x01true\x02"
    ours = SendTemplate(
        group=group,
        topic=topic,
        queue_id=queue,
        broker_name=broker,
        default_topic="TBW102",
        default_topic_queues=4,
        batch=batch,
    ).parts(FIRST_OPAQUE, b"1" * 13, properties, content)
    assert isinstance(ours, bytes)
    assert len(frame) == len(ours)
    assert without_what_varies(frame) == without_what_varies(ours)
    if batch:
        records = decode_batch(content)
        assert [record.body for record in records] == [body, body]
        ids = [decode_properties(record.properties)["UNIQ_KEY"] for record in records]
        assert len(set(ids)) == 2
        assert {len(each) for each in ids} == {32}


def without_what_varies(frame: bytes) -> RemotingCommand:
    """Born time and unique id blanked."""
    command = decode_command(FrameDecoder().feed(frame)[0])
    fields = command.ext_fields
    assert fields is not None
    assert len(fields["g"] or "") == 13
    fields["g"] = ""
    properties = decode_properties(fields["i"] or "")
    if "UNIQ_KEY" in properties:
        assert len(properties["UNIQ_KEY"]) == 32
        properties["UNIQ_KEY"] = ""
    fields["i"] = repr(sorted(properties.items()))
    return command


def test_unique_ids_of_the_bare_loop_differ(bare_loop: ModuleType) -> None:
    bare = bare_loop.BareProducer("Topic")
    ids = set()
    for _ in range(10_000):
        ids.add(decode_batch(bare._batched(b""))[0].properties)  # noqa: SLF001
    assert len(ids) == 10_000


@pytest.mark.deep
async def test_real_messages_are_measured_beside_another_checkout(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    async with EmbeddedRocketMQ() as server:
        bounds = ("--rounds", "1", "--seconds", "0.1", "--messages", "2000", "--with", "real-signed")
        before = ("--before", str(BENCHMARKS.parent), "--json", str(file))
        code, out, error = await run("messages.py", "--namesrv", server.namesrv, *bounds, *before)
    assert code == 0, error
    runs = json.loads(file.read_bytes())["runs"]
    assert list(runs) == ["bare", *[f"{row}{end}" for end in ("", " (before)") for row in ("plain", "real-signed")]]
    assert all(each["messages"] > 0 and not each["failures"] for results in runs.values() for each in results)
    assert "x before" in out
