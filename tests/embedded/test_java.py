"""The official Java client against the embedded broker: every case of the program in tests/support/java, and messages both ways.

One JVM runs all cases at once (see tests/support/java/program.py); the tests look at what it saw.
"""

from __future__ import annotations

import pytest

from ..support.java.expected import KEY_LINES, missing_key_lines
from ..support.java.program import BATCHED, FROM_PYTHON, Record, against_embedded, require_javac, strange_replies


@pytest.fixture(scope="module")
def record() -> Record:
    require_javac()
    return against_embedded()


def test_the_java_program_has_the_cases_that_are_looked_at(record: Record) -> None:
    assert set(record.lines) == set(KEY_LINES)


@pytest.mark.parametrize("case", KEY_LINES)
def test_the_official_client_finds_a_rocketmq_broker(case: str, record: Record) -> None:
    lines = record.lines.get(case, [])
    assert not missing_key_lines(case, lines), "\n".join([*lines, "", record.errors[-6000:]])


def test_the_java_push_consumer_gets_what_our_producer_sent(record: Record) -> None:
    lines = record.lines["interop-receive"]
    assert len(lines) == len(FROM_PYTHON) + len(BATCHED)
    for message in FROM_PYTHON[:-1]:
        text = f"body={message.body.decode()} tags={message.tags} keys={' '.join(message.keys)} flag={message.flag} "
        (line,) = (line for line in lines if text in line)
        assert f"number={message.properties['number']}}}" in line
    assert sum("body=12000bytes#" in line and "tags=Large" in line for line in lines) == 1
    for message in BATCHED:
        assert (
            sum(f"body={message.body.decode()} tags=Batch keys={' '.join(message.keys)} flag=0 " in line for line in lines) == 1
        )


def test_our_consumer_reads_what_the_java_producer_sent(record: Record) -> None:
    found = {(each.body, each.tags, each.keys, each.flag, each.properties.get("number")) for each in record.received}
    single = {(f"from Java ☕ {i}".encode(), f"Tag{i}", (f"key{i}", "second"), i, f"nº {i}") for i in range(4)}
    batch = {(f"batched {i}".encode(), "Batch", (f"batch{i}",), 0, None) for i in range(3)}
    assert found == single | batch | {(b"large " * 2_000, "Large", (), 0, None)}
    assert len(record.received) == 8


def test_java_replies_to_what_our_producer_asks(record: Record) -> None:
    assert not strange_replies(record)
