"""Typed headers: texts of extFields to fields and back, for every class in the tables."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_wire import FUZZ, INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, ext_fields, header_values

from rmq_protocol import headers
from rmq_protocol.constants import RequestCode
from rmq_protocol.errors import LocalProtocolError, RemoteProtocolError
from rmq_protocol.headers import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    BoundaryType,
    CreateTopicRequestHeader,
    EndTransactionRequestHeader,
    GetMaxOffsetRequestHeader,
    GetRouteInfoRequestHeader,
    Header,
    PullMessageResponseHeader,
    RpcRequestHeader,
    SearchOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    TopicRequestHeader,
    from_ext,
    send_header_v1,
    send_header_v2,
    to_ext,
)
from rmq_protocol.java_types import Int, Long

pytestmark = pytest.mark.interpreters

README = Path(__file__).parents[2] / "protocol" / "README.md"

WITHOUT_A_CODE = (
    headers.InitConsumerOffsetRequestHeader,
    headers.RegisterOrderTopicRequestHeader,
    headers.StatisticsMessagesRequestHeader,
)
"""In the reference library, but no request code of 5.5.0 uses them."""

CLASSES = sorted(
    (
        cls
        for cls in vars(headers).values()
        if isinstance(cls, type) and issubclass(cls, Header) and cls not in (Header, RpcRequestHeader, TopicRequestHeader)
    ),
    key=lambda cls: cls.__name__,
)
some_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)

SEND = SendMessageRequestHeader(
    producerGroup="g",
    topic="T",
    defaultTopic="TBW102",
    defaultTopicQueueNums=4,
    queueId=3,
    sysFlag=0,
    bornTimestamp=1_700_000_000_000,
    flag=0,
    properties="WAIT\x01true\x02",
    reconsumeTimes=0,
    unitMode=False,
    batch=False,
    bname="broker-a",
)


@given(st.sampled_from(CLASSES).flatmap(header_values))
@FUZZ
def test_any_header_survives_the_wire(header: Header) -> None:
    assert from_ext(type(header), to_ext(header)) == header


@given(st.sampled_from(CLASSES).flatmap(lambda cls: st.tuples(st.just(cls), st.none() | ext_fields(cls), st.booleans())))
@FUZZ
def test_any_ext_fields_give_the_header_or_our_error(case: tuple[type[Header], dict[str, str | None] | None, bool]) -> None:
    cls, ext, lenient = case
    try:
        header = from_ext(cls, ext, lenient=lenient)
    except RemoteProtocolError:
        return
    assert from_ext(cls, to_ext(header), lenient=lenient) == header


@some_class
def test_every_field_is_written_and_read(cls: type[Header]) -> None:
    for high in (False, True):
        header = cls(**{info.name: extreme(cls, info, high) for info in msgspec.structs.fields(cls)})
        ext = to_ext(header)
        assert ext.keys() == set(cls.__struct_fields__)
        assert from_ext(cls, ext) == header


def extreme(cls: type[Header], info: msgspec.structs.FieldInfo, high: bool) -> object:
    """The lowest or highest value a field has."""
    if info.name in cls.choices:
        return (max if high else min)(cls.choices[info.name])
    if info.type in (Int, Int | None):
        return INT_MAX if high else INT_MIN
    if info.type in (Long, Long | None):
        return LONG_MAX if high else LONG_MIN
    if info.type in (bool, bool | None):
        return high
    if info.type in (str, str | None):
        return "\U0010ffff" if high else ""
    return BoundaryType.UPPER if high else BoundaryType.LOWER


def test_the_tables_agree_with_the_classes() -> None:
    for code, cls in REQUEST_HEADERS.items():
        assert cls.request_code in REQUEST_HEADERS
        assert RequestCode(code) in RequestCode
    for code, cls in RESPONSE_HEADERS.items():
        assert RequestCode(code) in RequestCode
        assert cls.request_code in RESPONSE_HEADERS
    assert set(CLASSES) == {*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values(), *WITHOUT_A_CODE}


def test_the_readme_names_every_code_and_field() -> None:
    text = README.read_text("utf-8")
    for code, cls in [*REQUEST_HEADERS.items(), *RESPONSE_HEADERS.items()]:
        if 200070 <= code < 200080:  # lite topics: only mentioned
            continue
        numbers = [code, *(range(3001, 3011) if 3001 <= code <= 3010 else ())]
        assert any(re.search(rf"\b{number}\b", text) for number in numbers), code
        for name in set(cls.__struct_fields__):
            assert re.search(rf"\b{name}\b", text), f"{cls.__name__}.{name}"


def test_nothing_is_written_for_none() -> None:
    assert to_ext(GetRouteInfoRequestHeader(topic="T")) == {"topic": "T"}
    assert to_ext(GetRouteInfoRequestHeader(topic="T", acceptStandardJsonOnly=True, nsd=False)) == {
        "topic": "T",
        "acceptStandardJsonOnly": "true",
        "nsd": "false",
    }


def test_defaults_of_java_are_written_and_assumed() -> None:
    assert to_ext(GetMaxOffsetRequestHeader(topic="T", queueId=0))["committed"] == "true"
    assert from_ext(GetMaxOffsetRequestHeader, {"topic": "T", "queueId": "0"}).committed is True


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False)])
def test_booleans_are_read_as_java_does(text: str, value: bool) -> None:
    header = from_ext(GetMaxOffsetRequestHeader, {"topic": "T", "queueId": "0", "committed": text})
    assert header.committed is value


@pytest.mark.parametrize(
    ("text", "value"), [("upper", BoundaryType.UPPER), ("Lower", BoundaryType.LOWER), ("zzz", BoundaryType.LOWER)]
)
def test_a_boundary_type_is_read_without_regard_to_case(text: str, value: BoundaryType) -> None:
    ext = {"topic": "T", "queueId": "0", "timestamp": "1", "boundaryType": text}
    assert from_ext(SearchOffsetRequestHeader, ext).boundaryType is value


@pytest.mark.parametrize("text", ["", "x", "1.0", " 1", "1_000", "0x1", "2147483648", "-2147483649", "9" * 6000, "NaN"])
def test_a_number_that_is_none_names_header_and_field(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^SendMessageResponseHeader\.queueId: "):
        from_ext(SendMessageResponseHeader, {"msgId": "m", "queueId": text, "queueOffset": "1"})


@pytest.mark.parametrize(("text", "value"), [("+5", 5), ("-0", 0), ("007", 7), ("2147483647", 2147483647)])
def test_numbers_are_read_as_java_does(text: str, value: int) -> None:
    header = from_ext(SendMessageResponseHeader, {"msgId": "m", "queueId": text, "queueOffset": "1"})
    assert header.queueId == value


def test_a_missing_required_field_names_itself_or_is_none_on_request() -> None:
    ext = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "20"}
    with pytest.raises(RemoteProtocolError, match=r"PullMessageResponseHeader\.nextBeginOffset is missing"):
        from_ext(PullMessageResponseHeader, ext)
    header = from_ext(PullMessageResponseHeader, ext, lenient=True)
    assert header.nextBeginOffset is None
    assert header.maxOffset == 20


def test_no_ext_fields_at_all() -> None:
    with pytest.raises(RemoteProtocolError, match=r"SendMessageResponseHeader\.msgId is missing"):
        from_ext(SendMessageResponseHeader, None)
    assert from_ext(SendMessageResponseHeader, None, lenient=True).queueOffset is None


@pytest.mark.parametrize(("field", "value"), [("queueId", 2**31), ("bornTimestamp", 2**63), ("queueId", -(2**31) - 1)])
def test_a_number_that_does_not_fit_is_not_written(field: str, value: int) -> None:
    header = SendMessageRequestHeader(**{**{name: getattr(SEND, name) for name in SEND.__struct_fields__}, field: value})
    with pytest.raises(LocalProtocolError, match=rf"^SendMessageRequestHeader\.{field}: {value}"):
        to_ext(header)


def test_the_letters_of_a_send() -> None:
    assert to_ext(send_header_v2(SEND)) == {
        "a": "g",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "3",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    }
    assert send_header_v1(send_header_v2(SEND)) == SEND


def test_order_may_be_missing_in_a_topic_request() -> None:
    ext = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"}
    assert from_ext(CreateTopicRequestHeader, {**ext, "topicFilterType": "SINGLE_TAG"}).order is False


@pytest.mark.parametrize("outcome", [0, 8, 12])
def test_a_transaction_ends_in_one_of_three_ways(outcome: int) -> None:
    ext = {"producerGroup": "g", "tranStateTableOffset": "1", "commitLogOffset": "2", "msgId": "m"}
    assert from_ext(EndTransactionRequestHeader, {**ext, "commitOrRollback": str(outcome)}).commitOrRollback == outcome
    with pytest.raises(RemoteProtocolError, match=r"^EndTransactionRequestHeader\.commitOrRollback: 4 is none of \[0, 8, 12\]"):
        from_ext(EndTransactionRequestHeader, {**ext, "commitOrRollback": "4"})
