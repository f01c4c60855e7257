"""Signatures: what is signed, what is not, and that nothing of it shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_wire import FUZZ, texts

from rmq_protocol.errors import LocalProtocolError
from rmq_protocol.signing import SIGNATURE, SessionCredentials, sign, signature, signed_content

KEYS = SessionCredentials("ak", "sk")
ext_fields = st.dictionaries(texts, st.none() | texts, max_size=6)


@given(ext_fields, st.lists(st.binary(max_size=20), max_size=3))
@FUZZ
def test_a_server_computes_the_same_from_what_travels(ext: dict[str, str | None], body: list[bytes]) -> None:
    signed = sign(KEYS, ext, body)
    travelled = {name: value for name, value in signed.items() if name != SIGNATURE}
    ordered = sorted(travelled, key=lambda name: name.encode("utf-16-be"))
    content = "".join(travelled[name] for name in ordered).encode() + b"".join(body)
    assert signed[SIGNATURE] == signature(content, "sk")
    assert sign(KEYS, signed, body) == signed


def test_null_fields_do_not_travel_and_are_not_signed() -> None:
    assert sign(KEYS, {"a": None, "b": "x"}) == sign(KEYS, {"b": "x"})
    assert signed_content({"b": "2", "a": "1", SIGNATURE: "old"}, [b"3"]) == b"123"


def test_the_caller_keeps_its_fields() -> None:
    ext: dict[str, str | None] = {"b": "T"}
    sign(KEYS, ext)
    assert ext == {"b": "T"}


def test_the_secret_is_not_shown() -> None:
    credentials = SessionCredentials("ak", "very secret", "token")
    assert repr(credentials) == str(credentials) == "SessionCredentials('ak')"
    assert credentials.__rich_repr__() == [("access_key", "ak")]


@pytest.mark.parametrize("credentials", [SessionCredentials("\ud800", "sk"), SessionCredentials("ak", "\ud800")])
def test_what_is_not_unicode_cannot_be_signed(credentials: SessionCredentials) -> None:
    with pytest.raises(LocalProtocolError):
        sign(credentials, {"a": "b"})
    with pytest.raises(LocalProtocolError):
        sign(KEYS, {"a": "\udc00"})
