"""The benchmark of the codec: that its ways write and read the same, and one small run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_protocol.columns import StoredColumns
from rmq_protocol.command import decode_command
from rmq_protocol.frame import FrameDecoder

from ..support.benchmark_runs import BENCHMARKS, run

GROUPS = (
    "send request, encode",
    "send request, decode",
    "send reply, decode",
    "batch of 32, per message",
    "stored message, decode",
)


async def test_a_small_run_times_every_way(tmp_path: Path) -> None:
    file = tmp_path / "codec.json"
    code, out, error = await run("codec.py", "--rounds", "2", "--seconds", "0.001", "--json", str(file))
    assert (code, error) == (0, "")
    rows = json.loads(file.read_bytes())["rows"]
    assert set(GROUPS) < {row["what"] for row in rows}
    for row in rows:
        assert 0 < row["lowest"] <= row["ns"] <= row["highest"]
    assert {"template", "generic (msgspec)", "stdlib json"} <= {row["way"] for row in rows if row["what"] == GROUPS[0]}
    assert len(out.splitlines()) == len(rows) + 2


def test_all_ways_decode_as_many_stored_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import codec

    for way in codec.ways():
        if way.group == GROUPS[4]:
            found = way.call()
            decoded = found if isinstance(found, StoredColumns) else found.messages
            assert len(decoded) == way.each, way.name


def test_an_option_that_cannot_work_is_refused(program: Callable[..., Any]) -> None:
    code, out, error = program("codec.py", "--rounds", "0")
    assert (code, out) == (2, "")
    assert "must be above 0" in error


def test_all_ways_encode_the_same_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import codec

    commands = []
    for way in codec.ways():
        if way.group == GROUPS[0]:
            frame = way.call()
            assert isinstance(frame, bytes)
            command = decode_command(FrameDecoder().feed(frame)[0])
            commands.append((command.code, command.opaque, command.ext_fields, command.body))
    assert len(commands) == 6
    assert all(each == commands[0] for each in commands)
