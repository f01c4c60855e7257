"""Builds the frames of signed sends from templates: the work of ``signing.sign``, prepared for each queue.

A signature is an HMAC-SHA1 of all values in the order of their names, and of the body (``AclSigner``). Values that stay the same
are prepared. The constant values before the varying ones are hashed into a keyed state, which is copied for each frame. The
constant values after the varying ones are joined to a suffix. Copying the two states of an HMAC takes half the time of making them
from the key.
"""

from __future__ import annotations

import hashlib
from binascii import b2a_base64
from typing import Any, Final

from .send_codec import (
    BORN_DIGITS,
    FIRST_OPAQUE,
    JOIN_BELOW,
    JSON_END,
    SendTemplate,
    encode_entry,
    encode_flags,
    encode_text,
    pack_words,
)
from .signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, SessionCredentials

_BLOCK: Final = 64
_INNER: Final = bytes([byte ^ 0x36 for byte in range(256)])
_OUTER: Final = bytes([byte ^ 0x5C for byte in range(256)])
_FIRST_VARYING: Final = "f"
_LAST_VARYING: Final = "i"
"""The first and the last of the names whose values change: ``f`` sysFlag, ``g`` born time, ``h`` flag, ``i`` properties."""
_SIGNATURE_LENGTH: Final = 28
_SIGNED_END: Final = b',"f":"%d","h":"%d","g":"%b","i":%b,"Signature":"%b"},"opaque":%d}%b'


class SignedSendTemplate(SendTemplate):
    """A template whose frames carry the access key, the security token if there is one, and a signature.

    Raises:
        LocalProtocolError: If the secret key or another string has no UTF-8 form.
    """

    __slots__ = ("_credentials", "_inner", "_outer", "_signed", "_signed_base", "_suffix")

    def __init__(self, credentials: SessionCredentials, **header: Any) -> None:
        self._credentials = credentials
        super().__init__(**header)

    def _prepare_json(self, code: int, flag: int, fixed: dict[str, str]) -> None:
        super()._prepare_json(code, flag, self._with_key(fixed))
        self._signed = self._plain.removesuffix(JSON_END) + _SIGNED_END
        empty = self._signed % (b"", 0, 0, b"0" * BORN_DIGITS, b"", b"0" * _SIGNATURE_LENGTH, FIRST_OPAQUE, b"")
        self._signed_base = len(empty)
        self.plain_frame, self.plain_base, self.plain_below = b"", 0, 0

    def _prepare_binary(self, code: int, flag: int, fixed: dict[str, str]) -> None:
        super()._prepare_binary(code, flag, self._with_key(fixed))

    def parts(
        self, opaque: int, born_ms: bytes, properties: str, body: bytes, sys_flag: int = 0, flag: int = 0
    ) -> bytes | list[bytes]:
        """Return the signed frame, in one or two pieces as ``SendTemplate.parts`` does."""
        # A traceback may show variables, so signature and frame are assigned only after the last line that can fail.
        encoded = properties.encode()
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(b"%d%b%d%b%b" % (sys_flag, born_ms, flag, encoded, self._suffix))
        inner.update(body)
        outer.update(inner.digest())
        size = len(body)
        joined = size < JOIN_BELOW
        tail = body if joined else b""
        if self._serialize_type:
            signature = encode_entry(SIGNATURE, b2a_base64(outer.digest(), newline=False))
            head = self._binary(opaque, born_ms, encoded, size, tail, signature + encode_flags(sys_flag, flag))
        else:
            text = encode_text(properties)
            length = self._signed_base + len(text)
            if sys_flag or flag:
                length += len(b"%d%d" % (sys_flag, flag)) - 2
            head = self._signed % (
                pack_words(length + size + 4, length), sys_flag, flag, born_ms, text,
                b2a_base64(outer.digest(), newline=False), opaque, tail,
            )  # fmt: skip
        return head if joined else [head, body]

    def _with_key(self, fixed: dict[str, str]) -> dict[str, str]:
        """Return ``fixed`` with the fields of the credentials, and prepare the signatures of the frames."""
        credentials = self._credentials
        del self._credentials
        fields = fixed | {ACCESS_KEY: credentials.access_key}
        if credentials.security_token is not None:
            fields[SECURITY_TOKEN] = credentials.security_token
        names = sorted(fields)
        key = credentials.secret_key.encode()
        if len(key) > _BLOCK:
            key = hashlib.sha1(key).digest()  # noqa: S324 - the servers' algorithm
        key = key.ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha1(key.translate(_INNER))  # noqa: S324
        self._inner.update("".join([fields[name] for name in names if name < _FIRST_VARYING]).encode())
        self._outer = hashlib.sha1(key.translate(_OUTER))  # noqa: S324
        self._suffix = "".join([fields[name] for name in names if name > _LAST_VARYING]).encode()
        return fields
