"""SQL92 conditions: the outcomes of Java's own classes (``tests.support.java.conditions``), and the limits."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.sql92 import MAX_DEPTH, MAX_LENGTH, ConditionError, EvaluationError, compile_condition
from rmq_protocol.bodies import CheckClientRequestBody, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, SubscriptionData, encode_heartbeat
from rmq_protocol.stored import decode_messages

from ..support.fakes import RawClient, pull_fields

VECTORS = json.loads((Path(__file__).parent / "conditions.json").read_text())
PROPERTIES, CASES = VECTORS[0], VECTORS[1:]
LETTERS = {True: "t", False: "f", None: "n"}


def outcomes(text: str) -> str:
    try:
        condition = compile_condition(text)
    except ConditionError:
        return "invalid"
    letters = []
    for properties in PROPERTIES:
        try:
            value = condition.evaluate(properties)
        except EvaluationError:
            letters.append("e")
        else:
            letters.append(LETTERS[value])  # type: ignore[index]
        assert condition.matches(properties) is (letters[-1] == "t")
    return "".join(letters)


def test_conditions_equal_java() -> None:
    assert (len(CASES), len(PROPERTIES)) == (656, 12)
    assert {letter for _, expected in CASES if expected != "invalid" for letter in expected} == set("tfne")
    assert sum(expected == "invalid" for _, expected in CASES) > 100
    assert [(text, expected, found) for text, expected in CASES if (found := outcomes(text)) != expected] == []


def test_condition_of_too_many_levels_is_refused() -> None:
    deepest = MAX_DEPTH - 3
    assert compile_condition("(" * deepest + "a = 5" + ")" * deepest).matches({"a": "5"})
    for text in (
        "(" * 10_000 + "a = 5",
        "NOT " * 1000 + "a",
        "- " * 1000 + "5 = 5",
        "a" + " IS NULL" * 1000,
        "a" + " = 5" * 1000,
    ):
        with pytest.raises(ConditionError, match=f"deeper than {MAX_DEPTH}"):
            compile_condition(text)


def test_long_chain_is_evaluated() -> None:
    text = " OR ".join(f"a = '{number}'" for number in range(1000))
    assert len(text) < MAX_LENGTH
    condition = compile_condition(text)
    assert condition.matches({"a": "999"})
    assert not condition.matches({"a": "1000"})
    assert condition.size > 3000


def test_long_condition_is_refused() -> None:
    with pytest.raises(ConditionError, match=f"limit is {MAX_LENGTH}"):
        compile_condition("a = '" + "x" * MAX_LENGTH + "'")


@pytest.mark.parametrize("text", ["'" * 9999, "/*" * 8000, "-" * 16_000, "1" * 16_000, "'a''" * 4000, "a = '" + "''" * 8000])
def test_hostile_text_takes_no_time(text: str) -> None:
    began = process_time()
    with pytest.raises(ConditionError):
        compile_condition(text)
    assert process_time() - began < 0.5


def test_errors_name_the_place() -> None:
    for text, expected in (
        ("a > ", "a value is expected, not the end"),
        ("a > 5 AND !", "'!' at character 11 begins no word"),
        ("a > 'x'", "'x' has no order; use numbers or properties with >"),
        ("TRUE < a", "TRUE has no order"),
        ("a IN (5)", "a string is expected, not '5' at character 7"),
        ("5", "5 is not a condition; compare it with a property"),
        ("TRUE = 5", "TRUE cannot be compared with 5; compare it with a property, TRUE or FALSE"),
        ("5 IN ('x')", "IN must follow a property, not 5"),
        ("a BETWEEN 5 AND 1", "BETWEEN 5 AND 1: the first limit is above the second; exchange them"),
        ("a = 'x", "the string at character 5 has no end; close it with a single quote"),
        ("a NOT 5", "BETWEEN, IN, CONTAINS, STARTSWITH, ENDSWITH may follow NOT here, not '5' at character 7"),
        ("a NOT", "may follow NOT here, not the end"),
    ):
        with pytest.raises(ConditionError) as failed:
            compile_condition(text)
        assert expected in str(failed.value)


async def numbers(client: RawClient) -> None:
    for number in range(10):
        properties = {"UNIQ_KEY": f"u{number}", "a": str(number), "region": "eu" if number % 2 else "us"}
        await client.send("T", b"%d" % number, properties=properties)


def bodies(response: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_messages(response.body).messages]


async def test_pull_with_condition_gets_what_matches(broker: RawClient) -> None:
    await numbers(broker)
    found = await broker.pull("T", subscription="a > 5 AND region = 'eu'", expressionType="SQL92")
    assert (found.code, bodies(found)) == (0, [b"7", b"9"])
    assert (found.ext_fields or {})["nextBeginOffset"] == "10"
    none = await broker.pull("T", subscription="a > 50", expressionType="SQL92")
    assert (none.code, none.remark, (none.ext_fields or {})["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "10")


async def test_condition_that_cannot_be_read_delivers_everything(broker: RawClient) -> None:
    await numbers(broker)  # as a real broker does: tests/cluster/test_filters_real.py
    found = await broker.pull("T", subscription="a >", expressionType="SQL92")
    assert (found.code, len(bodies(found))) == (0, 10)
    empty = await broker.pull("T", subscription="", expressionType="SQL92")
    assert (empty.code, empty.remark) == (23, "parse the consumer's subscription failed")


async def test_conditions_of_heartbeats_filter(broker: RawClient) -> None:
    await numbers(broker)
    for version, (condition, expected) in enumerate([("a BETWEEN 2 AND 3", (0, [b"2", b"3"])), ("a BETWEEN", (27, []))], 1):
        sql = SubscriptionData("T", condition, sub_version=version, expression_type="SQL92")
        data = HeartbeatData("c1", consumer_data_set=(ConsumerData("CG", subscription_data_set=(sql,)),))
        assert (await broker.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(data))).code == 0
        found = await broker.pull("T", sysFlag="0", consumerGroup="CG")
        assert (found.code, bodies(found)) == expected


async def test_held_pull_waits_for_what_matches(broker: RawClient, server: EmbeddedRocketMQ) -> None:
    await broker.create_topic("T")
    async with RawClient(server.brokers["broker-a"]) as reader:
        fields = pull_fields("T", 0, 0, subscription="a = 7", expressionType="SQL92", sysFlag="6", suspendTimeoutMillis="3000")
        reader.write(RequestCode.PULL_MESSAGE, fields)
        await numbers(broker)
        found = await reader.read()
        assert (found.code, bodies(found)) == (0, [b"7"])


@pytest.mark.virtual_time
async def test_long_condition_looks_at_fewer_records(broker: RawClient) -> None:
    for number in range(200):
        await broker.send("T", b"%d" % number, properties={"UNIQ_KEY": f"u{number}", "a": "no"})
    text = " OR ".join(f"a = '{number}'" for number in range(500))
    found = await broker.pull("T", subscription=text, expressionType="SQL92")
    assert (found.code, (found.ext_fields or {})["nextBeginOffset"]) == (20, "32")


async def test_check_of_conditions(broker: RawClient, unfiltering: RawClient) -> None:
    def check(condition: str, kind: str = "SQL92") -> bytes:
        return encode_body(CheckClientRequestBody("c1", "CG", SubscriptionData("T", condition, expression_type=kind)))

    code = RequestCode.CHECK_CLIENT_CONFIG
    assert (await broker.ask(code, None, check("a > 5"))).code == 0
    refused = await broker.ask(code, None, check("a >"))
    assert refused.code == 23
    assert "a value is expected, not the end" in (refused.remark or "")
    assert (await broker.ask(code, None, check("a > 5", "OTHER"))).code == 23
    assert (await unfiltering.ask(code, None, check("a >"))).code == 1
