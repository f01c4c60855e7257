"""CRC32 as RocketMQ stores it: the polynomial of zlib, top bit cleared (``UtilAll.crc32``).

zlib is faster on small bodies, isal from about 512 bytes on (zlib against isal: 128 B 141 and 183 ns; 4 KiB 948 and 216 ns; 1 MiB
208 and 12 us), so the length decides where isal is installed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from .constants import PropertyName

ISAL_FROM: Final = 512
zlib_crc32: Final = zlib.crc32
isal_crc32: Callable[[bytes | bytearray | memoryview], int]

try:
    from isal.isal_zlib import crc32 as isal_crc32
except ImportError:  # the extra "compression" is not installed
    isal_crc32 = zlib.crc32


def crc32(data: bytes | bytearray | memoryview) -> int:
    """Return the 31-bit checksum that brokers store for a body."""
    if len(data) < ISAL_FROM:
        return zlib_crc32(data) & 0x7FFFFFFF
    return isal_crc32(data) & 0x7FFFFFFF


def crc_property(checksum: int) -> bytes:
    """Return the ``__CRC32#`` entry that a broker with ``enabledAppendPropCRC`` appends to the properties: ten decimal digits,
    the least significant first (``MessageDecoder.createCrc32``).
    """
    return f"{PropertyName.CRC32.value}\x01{str(checksum).rjust(10, '0')[::-1]}\x02".encode()
