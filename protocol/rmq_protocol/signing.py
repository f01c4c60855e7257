"""Signatures of requests (``AclUtils``, ``AclSigner``): the same for ACL 1.0 and 2.0.

A server takes the values of all extFields it received, in the order of their names, then the body, and expects their
HMAC-SHA1. So a request is signed last, after everything else that adds extFields, and anew when any of them changes.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from .errors import LocalProtocolError

__all__ = [
    "ACCESS_KEY",
    "HIDDEN",
    "SECURITY_TOKEN",
    "SIGNATURE",
    "SessionCredentials",
    "shown_fields",
    "sign",
    "signature",
    "signed_content",
]

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the field's name
SIGNATURE: Final = "Signature"
HIDDEN: Final = "***"


class SessionCredentials(msgspec.Struct, frozen=True):
    """The keys that requests are signed with.

    ``access_key``: the user's name, ``secret_key``: the password, where brokers have users. Never shown.
    """

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __repr__(self) -> str:
        return f"SessionCredentials({self.access_key!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Returns the fields that rich's tracebacks and printers show; the method of a Struct would return the secrets too."""
        return [("access_key", self.access_key)]


def sign(
    credentials: SessionCredentials, ext_fields: Mapping[str, str | None] | None, body: Iterable[bytes] = ()
) -> dict[str, str]:
    """Returns the extFields with access key and signature, which replace earlier ones; fields that are None are left out.

    ``body``: its pieces. Raises LocalProtocolError for text that is not Unicode.
    """
    ext = {name: value for name, value in (ext_fields or {}).items() if value is not None and name != SIGNATURE}
    ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    try:
        content = signed_content(ext, body)
    except LocalProtocolError as error:
        ext, reason = {}, str(error)  # a traceback that shows variables would show the token
    else:
        ext[SIGNATURE] = signature(content, credentials.secret_key)
        return ext
    raise LocalProtocolError(reason)


def signed_content(ext_fields: Mapping[str, str], body: Iterable[bytes] = ()) -> bytes:
    """Returns the bytes to sign. Java orders names by UTF-16 units."""
    names = list(ext_fields)
    names.sort(key=None if all(map(str.isascii, names)) else _utf16)
    try:
        text = "".join([ext_fields[name] for name in names if name != SIGNATURE]).encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"extFields cannot be signed: {error.reason}") from None
    return b"".join([text, *body])


def signature(content: bytes, secret_key: str) -> str:
    try:
        key = secret_key.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError("the secret key is not Unicode; give one without lone surrogates") from None
    return base64.b64encode(hmac.digest(key, content, "sha1")).decode()


def shown_fields(ext_fields: Mapping[str, str | None] | None) -> dict[str, str | None] | None:
    """Returns the extFields without secret values, for logs and errors."""
    if ext_fields is None:
        return None
    return {name: HIDDEN if name in (SIGNATURE, SECURITY_TOKEN) else value for name, value in ext_fields.items()}


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
