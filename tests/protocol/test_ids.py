"""Offset ids and unique ids."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_messages import INT64, fuzz, hosts

from rmq_protocol.errors import LocalProtocolError
from rmq_protocol.ids import (
    format_host,
    pack_host,
    pack_offset_id,
    pack_unique_id,
    unique_id_prefix,
    unpack_offset_id,
    unpack_unique_id,
)


@given(hosts, INT64)
@fuzz
def test_offset_ids_round_trip(host: str, offset: int) -> None:
    msg_id = pack_offset_id(host, offset)
    assert len(msg_id) == (56 if host.startswith("[") else 32)
    assert unpack_offset_id(msg_id) == (host, offset)
    assert unpack_offset_id(msg_id.lower()) == (host, offset)


@given(st.ip_addresses(), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**32 - 1), st.integers(0, 2**20))
@fuzz
def test_unique_ids_round_trip(ip: Any, pid: int, salt: int, elapsed: int, counter: int) -> None:
    msg_id = pack_unique_id(unique_id_prefix(ip.packed, pid, salt), elapsed, counter)
    assert len(msg_id) == (32 if ip.version == 4 else 56)
    unique = unpack_unique_id(msg_id)
    assert ipaddress.ip_address(unique.ip) == ip
    assert unique[1:] == (pid & 0xFFFF, salt & 0xFFFFFFFF, elapsed, counter & 0xFFFF)


@given(st.text(max_size=60) | st.text("0123456789ABCDEFabcdefxyz \n", min_size=32, max_size=32) | st.none() | st.integers())
@fuzz
def test_what_is_no_id_is_refused(text: Any) -> None:
    for unpack in (unpack_offset_id, unpack_unique_id):
        try:
            fields = unpack(text)
        except LocalProtocolError:
            continue
        assert len(text) in (32, 56)
        assert len(fields) >= 2


@pytest.mark.parametrize(
    "host", ["", "1.2.3.4", "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:65536", "1.2.3.4:-1", "host:1", "1.2.3:5", ":5", "a:٣"]
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(LocalProtocolError):
        pack_host(host)


@pytest.mark.parametrize("offset", [2**63, -(2**63) - 1])
def test_offsets_beyond_64_bits_are_refused(offset: int) -> None:
    with pytest.raises(LocalProtocolError, match=r"from -2\^63 to 2\^63 - 1"):
        pack_offset_id("1.2.3.4:5", offset)


def test_a_port_that_is_none_makes_the_id_invalid() -> None:
    with pytest.raises(LocalProtocolError, match="port"):
        unpack_offset_id("7F000001FFFFFFFF00000000000004D2")


def test_an_address_of_another_length_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="4 or 16"):
        unique_id_prefix(b"\x7f\0\0", 1, 1)


def test_hosts_are_written_with_brackets_around_ipv6_only() -> None:
    assert format_host(bytes([127, 0, 0, 1]), 10911) == "127.0.0.1:10911"
    assert format_host(bytes(15) + b"\1", 10911) == "[::1]:10911"
    mapped = bytes(10) + b"\xff\xff\x01\x02\x03\x04"
    assert format_host(mapped, 5) == "1.2.3.4:5"
    assert pack_host("[::ffff:1.2.3.4]:5") == (b"\x01\x02\x03\x04", 5)
    assert pack_host("::1:5") == (bytes(15) + b"\1", 5)


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Asia/Shanghai"), ZoneInfo("America/New_York")], ids=str)
@pytest.mark.parametrize("made", [(2026, 3, 31, 23, 59), (2026, 1, 1, 0, 0), (2026, 12, 31, 12, 0), (2027, 1, 1, 0, 1)])
def test_the_time_of_a_unique_id_is_found_within_a_month(zone: Any, made: tuple[int, ...]) -> None:
    when = datetime(*made, tzinfo=zone)  # type: ignore[arg-type, misc]
    month = when.replace(day=1, hour=0, minute=0)
    elapsed = round((when.timestamp() - month.timestamp()) * 1000)
    unique = unpack_unique_id(pack_unique_id(unique_id_prefix(bytes(4), 1, 1), elapsed, 0))
    made_ms = round(when.timestamp() * 1000)
    assert unique.nearly_time_ms(made_ms + 60_000, zone) == made_ms
