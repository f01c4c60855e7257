"""Packs and unpacks message ids.

The caller supplies time, host and process.

An *offset id* (``MessageDecoder.createMessageId``) consists of an address of 4 or 16 bytes, a port of 4 bytes and a commit log
offset of 8 bytes. A *unique id* (``MessageClientIDSetter``) consists of an address of 4 or 16 bytes, a process id of 2 bytes, a
salt of 4 bytes, the milliseconds since the first of the month in local time (4 bytes) and a counter of 2 bytes. Both are written
in upper-case hexadecimal: 32 characters with an IPv4 address, 56 with an IPv6 address.
"""

from __future__ import annotations

import ipaddress
import struct
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple

from .errors import LocalProtocolError, shown

_MAPPED_PREFIX: Final = bytes(10) + b"\xff\xff"
_PORT_AND_OFFSET: Final = struct.Struct(">iq")
_UNIQUE_TAIL: Final = struct.Struct(">HIIH")


class OffsetId(NamedTuple):
    """The parts of an offset message id.

    Attributes:
        host: "ip:port" of the broker. An IPv6 address is in brackets.
        offset: Position in the broker's commit log in bytes.
    """

    host: str
    offset: int


class UniqueId(NamedTuple):
    """The parts of a unique message id.

    Attributes:
        elapsed_ms: Milliseconds since the beginning of the month in the sender's time zone, 32 bits.
    """

    ip: str
    pid: int
    salt: int
    elapsed_ms: int
    counter: int

    def nearly_time_ms(self, now_ms: int, zone: tzinfo = UTC) -> int:
        """Return the time at which the id was made, epoch ms.

        An id does not contain the month. The month of ``now_ms`` is assumed or, if the resulting time would not be before
        ``now_ms``, the month before.

        Args:
            now_ms: Present time, epoch ms.
            zone: The sender's time zone.
        """
        return _nearly_time_ms(self.elapsed_ms, now_ms, zone)


@lru_cache(maxsize=4096)
def format_host(ip: bytes, port: int) -> str:
    """Return "ip:port" for 4 or 16 address bytes and a port.

    An IPv6 address is in brackets. An IPv4-mapped address is written as IPv4, as in Java.
    """
    if len(ip) == 4:
        return f"{ip[0]}.{ip[1]}.{ip[2]}.{ip[3]}:{port}"
    if ip.startswith(_MAPPED_PREFIX):
        return f"{ip[12]}.{ip[13]}.{ip[14]}.{ip[15]}:{port}"
    return f"[{ipaddress.IPv6Address(ip)}]:{port}"


@lru_cache(maxsize=4096)
def pack_host(host: str) -> tuple[bytes, int]:
    """Return address bytes and port of "1.2.3.4:10911" or "[::1]:10911" (the brackets may be missing).

    An IPv4-mapped address becomes 4 bytes.

    Raises:
        LocalProtocolError: If the string has another form.
    """
    ip, _, port = host.rpartition(":")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 0xFFFF):
        raise LocalProtocolError(f"a host must be ip:port with a port from 0 to 65535, not {host!r}")
    return _pack_ip(ip.removeprefix("[").removesuffix("]")), int(port)


def _pack_ip(ip: str) -> bytes:
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        raise LocalProtocolError(f"a host must have an IP address, not {ip!r}") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed


def pack_offset_id(host: str, offset: int) -> str:
    """Return the offset id of a record at commit log ``offset`` of the broker at ``host`` ("ip:port").

    Raises:
        LocalProtocolError: If the host is invalid or the offset does not fit into a signed 64-bit number.
    """
    ip, port = pack_host(host)
    if not -(2**63) <= offset < 2**63:
        raise LocalProtocolError(f"a commit log offset must be from -2^63 to 2^63 - 1, not {shown(offset)}")
    return (ip + _PORT_AND_OFFSET.pack(port, offset)).hex().upper()


def unpack_offset_id(msg_id: str) -> OffsetId:
    """Return host and commit log offset of an offset id.

    Raises:
        LocalProtocolError: If the id does not consist of 32 or 56 hexadecimal digits, or if its port is not from 0 to 65535.
    """
    raw = _from_hex(msg_id, "an offset message id")
    ip, rest = raw[:-12], raw[-12:]
    port, offset = _PORT_AND_OFFSET.unpack(rest)
    if not 0 <= port <= 0xFFFF:
        raise LocalProtocolError(f"offset message id {msg_id} has the port {port}; it must be from 0 to 65535")
    return OffsetId(format_host(ip, port), offset)


def _from_hex(text: str, what: str) -> bytes:
    if isinstance(text, str) and len(text) in (32, 56) and text.isalnum():
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise LocalProtocolError(f"{shown(text)} is not {what}; give 32 or 56 hexadecimal digits")


def unique_id_prefix(ip: bytes, pid: int, salt: int) -> str:
    """Return the first 20 (IPv4) or 44 (IPv6) characters of every unique id of a process: ``ip`` of 4 or 16 bytes, the low 16
    bits of ``pid`` and the low 32 bits of ``salt``.

    Raises:
        LocalProtocolError: If the address does not have 4 or 16 bytes.
    """
    if len(ip) not in (4, 16):
        raise LocalProtocolError(f"an address must have 4 or 16 bytes, not {len(ip)}")
    return f"{ip.hex().upper()}{pid & 0xFFFF:04X}{salt & 0xFFFFFFFF:08X}"


def pack_unique_id(prefix: str, elapsed_ms: int, counter: int) -> str:
    """Return a unique id: ``prefix``, the low 32 bits of ``elapsed_ms`` (since the beginning of the month) and the low 16 bits of
    ``counter``.
    """
    return f"{prefix}{elapsed_ms & 0xFFFFFFFF:08X}{counter & 0xFFFF:04X}"


def unpack_unique_id(msg_id: str) -> UniqueId:
    """Return the parts of a unique id.

    Raises:
        LocalProtocolError: If the id does not consist of 32 or 56 hexadecimal digits.
    """
    raw = _from_hex(msg_id, "a unique message id")
    return UniqueId(str(ipaddress.ip_address(raw[:-12])), *_UNIQUE_TAIL.unpack(raw[-12:]))


def _nearly_time_ms(elapsed_ms: int, now_ms: int, zone: tzinfo) -> int:
    now = datetime.fromtimestamp(now_ms / 1000, zone)
    month = datetime(now.year, now.month, 1, tzinfo=zone)
    made = round(month.timestamp() * 1000) + elapsed_ms
    if made >= now_ms:
        before = (now.year - 1, 12) if now.month == 1 else (now.year, now.month - 1)
        made = round(datetime(*before, 1, tzinfo=zone).timestamp() * 1000) + elapsed_ms
    return made
