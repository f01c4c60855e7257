"""The layout of a stored record, and a function that writes one (``MessageExtEncoder``). Records are read by ``stored``.

Fields and sizes in bytes: TOTALSIZE 4, MAGICCODE 4, BODYCRC 4, QUEUEID 4, FLAG 4, QUEUEOFFSET 8, PHYSICALOFFSET 8, SYSFLAG 4,
BORNTIMESTAMP 8, BORNHOST 8 or 20, STORETIMESTAMP 8, STOREHOST 8 or 20, RECONSUMETIMES 4, PREPARED TRANSACTION OFFSET 8, body
length 4, body, topic length 1 (V1) or 2 (V2), topic, properties length 2, properties. FIXED has a precompiled struct of the
fixed part for each pair of address families.
"""

from __future__ import annotations

import struct
from typing import Final

from .checksum import crc32
from .constants import MAGIC_CODE_V1, MAGIC_CODE_V2, MAX_TOPIC_LENGTH, SysFlag
from .errors import LocalProtocolError
from .ids import pack_host

HOSTS_V6: Final = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
FIXED: Final = {
    0: struct.Struct(">iiiiiqqiq4siq4siiqi"),
    int(SysFlag.BORN_HOST_V6): struct.Struct(">iiiiiqqiq16siq4siiqi"),
    int(SysFlag.STORE_HOST_V6): struct.Struct(">iiiiiqqiq4siq16siiqi"),
    HOSTS_V6: struct.Struct(">iiiiiqqiq16siq16siiqi"),
}
FIXED_V4: Final = FIXED[0]
MIN_RECORD: Final = FIXED_V4.size + 3
MAX_PORT: Final = 0xFFFF
_BYTE: Final = struct.Struct(">b")
_SHORT: Final = struct.Struct(">h")
_IPV4_SIZE: Final = 4


def encode_stored(
    *,
    topic: str,
    body: bytes,
    properties: bytes = b"",
    queue_id: int = 0,
    queue_offset: int = 0,
    commit_log_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_time_ms: int = 0,
    born_host: str = "127.0.0.1:0",
    store_time_ms: int = 0,
    store_host: str = "127.0.0.1:0",
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    body_crc: int | None = None,
    version: int | None = None,
) -> bytes:
    """Return one record as a broker stores it.

    The host bits of ``sys_flag`` are set according to the hosts ("ip:port", with IPv6 addresses in brackets).

    Args:
        body: The body, which is written as given. The caller compresses it if ``sys_flag`` has a compression bit.
        version: 1 or 2. None selects 2 if the topic has more than 127 bytes, and 1 otherwise.
        body_crc: The CRC32 in the record. None stands for the CRC32 of ``body``.

    Raises:
        LocalProtocolError: If a value does not fit its field.
    """
    born_ip, born_port = pack_host(born_host)
    store_ip, store_port = pack_host(store_host)
    sys_flag &= ~HOSTS_V6
    if len(born_ip) != _IPV4_SIZE:
        sys_flag |= SysFlag.BORN_HOST_V6.value
    if len(store_ip) != _IPV4_SIZE:
        sys_flag |= SysFlag.STORE_HOST_V6.value
    try:
        name = topic.encode()
        if version is None:
            version = 1 if len(name) <= MAX_TOPIC_LENGTH else 2
        if version == 1 and len(name) > MAX_TOPIC_LENGTH:
            raise LocalProtocolError(
                f"topic {topic!r} has {len(name)} bytes, version 1 holds {MAX_TOPIC_LENGTH}; use version 2"
            )
        fixed = FIXED[sys_flag & HOSTS_V6]
        head = fixed.pack(
            fixed.size + len(body) + version + len(name) + 2 + len(properties),
            MAGIC_CODE_V1 if version == 1 else MAGIC_CODE_V2,
            crc32(body) if body_crc is None else body_crc,
            queue_id,
            flag,
            queue_offset,
            commit_log_offset,
            sys_flag,
            born_time_ms,
            born_ip,
            born_port,
            store_time_ms,
            store_ip,
            store_port,
            reconsume_times,
            prepared_transaction_offset,
            len(body),
        )
        topic_length = (_BYTE if version == 1 else _SHORT).pack(len(name))
        return b"".join((head, body, topic_length, name, _SHORT.pack(len(properties)), properties))
    except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
        raise LocalProtocolError(
            f"record of topic {topic!r} cannot be encoded: {error}; give values that fit the fields"
        ) from error
