"""Signatures of requests (``AclUtils``, ``AclSigner``), which are the same for ACL 1.0 and 2.0.

A server computes the HMAC-SHA1 of the values of all received extFields except the signature, in the order of their names, and of
the body. It compares the result with the signature. A request is therefore signed after all other steps that add extFields, and
signed again if one of them changes.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from .errors import LocalProtocolError
from .java_types import utf16

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the field's name
SIGNATURE: Final = "Signature"
HIDDEN: Final = "***"


class SessionCredentials(msgspec.Struct, frozen=True):
    """The keys with which requests are signed. ``repr`` shows the access key only.

    Attributes:
        access_key: The access key. On brokers with users (ACL 2.0) it is the name of the user.
        secret_key: The secret key. On brokers with users (ACL 2.0) it is the password of the user.
        security_token: The token of temporary credentials. None for other credentials.
    """

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __repr__(self) -> str:
        return f"SessionCredentials({self.access_key!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields that rich shows. The ``__rich_repr__`` inherited from Struct would also show the secrets."""
        return [("access_key", self.access_key)]


def sign(
    credentials: SessionCredentials, ext_fields: Mapping[str, str | None] | None, body: Iterable[bytes] = ()
) -> dict[str, str]:
    """Return the extFields with access key, security token (if there is one) and signature, which replace earlier values.

    Fields that are None are left out.

    Args:
        credentials: The keys to sign with.
        ext_fields: All other extFields of the request.
        body: The pieces of the request's body.

    Raises:
        LocalProtocolError: If a string has no UTF-8 form.
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
    """Return the bytes to sign: the values of all fields except the signature, in the order of their names, and the body.

    Names are compared by UTF-16 units, as in Java.

    Raises:
        LocalProtocolError: If a string has no UTF-8 form.
    """
    names = list(ext_fields)
    names.sort(key=None if all(map(str.isascii, names)) else utf16)
    try:
        text = "".join([ext_fields[name] for name in names if name != SIGNATURE]).encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"extFields cannot be signed: {error.reason}; give strings without lone surrogates") from None
    return b"".join([text, *body])


def signature(content: bytes, secret_key: str) -> str:
    try:
        key = secret_key.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError("the secret key has no UTF-8 form; give one without lone surrogates") from None
    return base64.b64encode(hmac.digest(key, content, "sha1")).decode()


def shown_fields(ext_fields: Mapping[str, str | None] | None) -> dict[str, str | None] | None:
    """Return the extFields with HIDDEN in place of signature and security token, for logs and errors. Return None for None."""
    if ext_fields is None:
        return None
    return {name: HIDDEN if name in (SIGNATURE, SECURITY_TOKEN) else value for name, value in ext_fields.items()}
