"""Signed templates say the same as the general codec with a signature of ``sign``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_wire import FUZZ

from rmq_protocol.command import RemotingCommand, decode_command
from rmq_protocol.constants import SerializeType
from rmq_protocol.errors import LocalProtocolError
from rmq_protocol.frame import FrameDecoder
from rmq_protocol.send_codec import FIRST_OPAQUE, ID_LENGTH, JOIN_BELOW, LAST_OPAQUE, SendTemplate
from rmq_protocol.signed_send_codec import SignedSendTemplate
from rmq_protocol.signing import SessionCredentials, sign

names = st.text(alphabet="abcXYZ019%|_-", min_size=1, max_size=40)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
int32 = st.integers(-(2**31), 2**31 - 1)
secrets = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90)
BORN = b"1700000000000"


def decoded(parts: bytes | list[bytes]) -> RemotingCommand:
    frames = FrameDecoder(1 << 24).feed(parts if isinstance(parts, bytes) else b"".join(parts))
    (frame,) = frames
    command = decode_command(frame)
    fields = {name: value for name, value in (command.ext_fields or {}).items() if value is not None}  # empty binary values
    command.ext_fields = {**fields}
    return command


def both(credentials: SessionCredentials, **changes: object) -> tuple[SendTemplate, SignedSendTemplate]:
    header: dict[str, object] = {
        "group": "g", "topic": "t", "queue_id": 3, "broker_name": "b", "default_topic": "TBW102", "default_topic_queues": 4,
    }  # fmt: skip
    header |= changes
    return SendTemplate(**header), SignedSendTemplate(credentials, **header)  # type: ignore[arg-type]


@FUZZ
@given(
    form=st.sampled_from(SerializeType),
    batch=st.booleans(),
    oneway=st.booleans(),
    group=names,
    broker=texts.filter(bool),
    secret=secrets,
    token=st.none() | secrets,
    opaque=st.integers(FIRST_OPAQUE, LAST_OPAQUE),
    properties=texts,
    size=st.sampled_from([0, 1, 128, JOIN_BELOW - 1, JOIN_BELOW, 5000]),
    sys_flag=st.sampled_from([0, 1, 0x301, 4]),
    flag=st.one_of(st.just(0), int32),
)
def test_a_signed_template_gives_the_unsigned_fields_and_the_signature_of_sign(
    form: SerializeType, batch: bool, oneway: bool, group: str, broker: str, secret: str, token: str | None, opaque: int,
    properties: str, size: int, sys_flag: int, flag: int,
) -> None:  # fmt: skip
    credentials = SessionCredentials("alice", secret, token)
    header = {"serialize_type": form, "batch": batch, "oneway": oneway, "group": group, "broker_name": broker}
    plain, signed = both(credentials, **header)
    body = b"x" * size
    expected = decoded(plain.parts(opaque, BORN, properties, body, sys_flag, flag))
    expected.ext_fields = {**sign(credentials, expected.ext_fields, (body,))}
    for _ in range(2):  # the prepared states are not used up
        assert decoded(signed.parts(opaque, BORN, properties, body, sys_flag, flag)) == expected


def test_a_plain_message_is_signed_too() -> None:
    credentials = SessionCredentials("alice", "secret")
    plain, signed = both(credentials)
    expected = decoded(plain.plain(FIRST_OPAQUE, BORN, "0" * ID_LENGTH, b"body"))
    expected.ext_fields = {**sign(credentials, expected.ext_fields, (b"body",))}
    assert decoded(signed.plain(FIRST_OPAQUE, BORN, "0" * ID_LENGTH, b"body")) == expected
    assert signed.plain_below == 0


@pytest.mark.parametrize("form", SerializeType)
def test_a_template_keeps_no_secret(form: SerializeType) -> None:
    credentials = SessionCredentials("alice", "the secret", "the token")
    _, signed = both(credentials, serialize_type=form)
    assert "the" not in repr(signed)
    assert not hasattr(signed, "_credentials")


def test_a_name_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="cannot be encoded") as caught:
        both(SessionCredentials("alice", "the secret"), broker_name="\ud800")
    assert "the secret" not in str(caught.value)
