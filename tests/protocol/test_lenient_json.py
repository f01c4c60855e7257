"""The reader of the servers' own JSON."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_wire import FUZZ, damaged, json_values, lenient_values

import vectors
from rmq_protocol.errors import LocalProtocolError, RemoteProtocolError
from rmq_protocol.lenient_json import MAX_DEPTH, dumps, loads


def test_integer_keys_without_quotes_are_integers_and_quoted_ones_are_texts() -> None:
    assert loads(b'{0:"a",-1:"b","1":"c"}') == {0: "a", -1: "b", "1": "c"}


def test_an_object_used_as_a_key_is_a_tuple_of_its_members_in_order_of_name() -> None:
    value = loads('{"offsetTable":{{"topic":"T","queueId":0,"brokerName":"b"}:5}}')
    [(key, offset)] = value["offsetTable"].items()
    assert key == (("brokerName", "b"), ("queueId", 0), ("topic", "T"))
    assert dict(key) == {"topic": "T", "queueId": 0, "brokerName": "b"}
    assert offset == 5
    assert loads('{{"a":1,"b":2}:0,{"b":2,"a":1}:9}') == {(("a", 1), ("b", 2)): 9}
    assert loads("{{}:1}") == {(): 1}


@given(json_values(["brokerAddrs", "queueId"]))
@FUZZ
def test_standard_json_is_read_as_the_standard_library_does(value: Any) -> None:
    text = json.dumps(value)
    assert loads(text) == json.loads(text)
    assert loads(text.encode()) == json.loads(text)


@given(lenient_values)
@FUZZ
def test_what_dumps_writes_loads_reads(value: Any) -> None:
    assert loads(dumps(value)) == value


@given(st.text(max_size=40) | st.binary(max_size=40) | damaged(lenient_values.map(dumps)))
@FUZZ
def test_anything_else_is_our_error(data: bytes | str) -> None:
    try:
        value = loads(data)
    except RemoteProtocolError:
        return
    assert loads(dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "ends at 0"),
        ("  ", "ends at 2"),
        ("{", "ends at 1"),
        ('{"a"', "ends at 4"),
        ('{"a":', "ends at 5"),
        ('{"a":1', "ends at 6"),
        ("[1,", "ends at 3"),
        ("[1,]", "expected a value at 3"),
        ("{a:1}", "expected a key at 1"),
        ("{'a':1}", "expected a key at 1"),
        ('{"a":1,}', "expected a key at 7"),
        ('{"a" 1}', "expected ':' at 5"),
        ("{1.5:1}", "expected ':' at 2"),
        ("{99999999999999999999:1}", "key outside 64 bits at 1"),
        ("{null:1}", "expected a key at 1"),
        ("{[1]:1}", "expected a key at 1"),
        ('{{"a":{}}:1}', "expected a text, a number, true, false or null in an object used as a key at 6"),
        ("{{1:2}:3}", "expected a quoted name in an object used as a key at 2"),
        ('{{"a":1 "b":2}:3}', "expected ',' or '}' at 8"),
        ("[1 2]", "expected ',' or ']' at 3"),
        ('{"a":1 "b":2}', "expected ',' or '}' at 7"),
        ("1 2", "more text after the value at 2"),
        ("NaN", "expected a value at 0"),
        ("-Infinity", "expected a value at 0"),
        ("1e999", "number too large at 0"),
        ("01", "more text after the value at 1"),
        ("1" * 500, "number of 500 digits, the limit is 400, at 0"),
        ('"abc', "string with an invalid escape or without an end at 0"),
        (r'"\x41"', "string with an invalid escape or without an end at 0"),
        (r'["\ud800"]', "lone surrogate in a string at 1"),
        ("[" * 10_000, f"nested deeper than {MAX_DEPTH} at {MAX_DEPTH}"),
        ('{"a":' * 10_000, f"nested deeper than {MAX_DEPTH} at {5 * MAX_DEPTH}"),
        ("\ufeff{}", "expected a value at 0"),
        ("/*x*/{}", "expected a value at 0"),
    ],
)
def test_an_error_says_what_and_where(text: str, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        loads(text)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 200


def test_bytes_that_are_not_utf8() -> None:
    with pytest.raises(RemoteProtocolError, match="not UTF-8 at byte 2"):
        loads(b'{"\xff":1}')


def test_the_deepest_value_is_read() -> None:
    assert loads("[" * MAX_DEPTH + "]" * MAX_DEPTH) == loads(dumps(loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)))


def test_control_characters_inside_strings_are_let_through() -> None:
    assert loads('"a\x01b\x02\n"') == "a\x01b\x02\n"


@pytest.mark.parametrize(
    "unit",
    ["1,", '"x",', "{},", "[],", '{"a":1},', '{0:"x"},', '{{"a":1}:2},', "1.5e3,", r'"\u00e9\n",', " ,"],
)
def test_time_grows_with_the_input_and_no_faster(unit: str) -> None:
    """Four times the input takes about four times as long; a quadratic reader would take sixteen."""

    def seconds(count: int) -> float:
        text = "[" + unit * count + "0]"
        times = []
        for _ in range(3):
            began = time.process_time()
            with contextlib.suppress(RemoteProtocolError):
                loads(text)
            times.append(time.process_time() - began)
        return min(times)

    assert seconds(12_000) < 10 * max(seconds(3_000), 0.001)


def test_what_json_has_no_form_for_is_not_written() -> None:
    for value in (object(), {"a": {1, 2}} | {"b": object()}, "\ud800"):
        with pytest.raises(LocalProtocolError, match="cannot be written as JSON"):
            dumps(value)
    deep: list[Any] = []
    for _ in range(MAX_DEPTH + 2):
        deep = [deep]
    with pytest.raises(LocalProtocolError, match="nested deeper"):
        dumps(deep)


def test_every_body_the_official_classes_write_is_read() -> None:
    """Also those whose Structs come later: the strict ones as a strict parser reads them, the others at all."""
    read = 0
    for path in vectors.all_files():
        if vectors.kind_of(path) != "bodies":
            continue
        for case in vectors.load(path):
            text = case.expected["text"]
            value = loads(text)
            if case.expected.get("is_strict_json", case.type == "heartbeat"):
                assert value == json.loads(text)
            table = case.given.get("value", {}).get("offsetTable") if case.type == "encode" else None
            if table is not None:
                queues = [entry["queue"] for entry in table]
                assert sorted(map(str, value["offsetTable"])) == sorted(str(tuple(sorted(queue.items()))) for queue in queues)
            read += 1
    assert read
