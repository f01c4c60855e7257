"""The keys with which a client signs its requests."""

from __future__ import annotations

from rmq_protocol.errors import shown
from rmq_protocol.signing import SessionCredentials

from .errors import ConfigError


class Credentials(SessionCredentials, frozen=True):
    """The keys with which requests are signed.

    Neither ``repr`` nor an error shows the secret key or the token.

    Args:
        access_key: The user's name.
        secret_key: The user's secret key; for brokers with users, the password.
        security_token: The token of a session; None if there is none.

    Raises:
        ConfigError: For a value that is not a str, is empty, or cannot be encoded in UTF-8.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.access_key, str) or not self.access_key:
            raise ConfigError(f"access_key must be a non-empty str, not {shown(self.access_key)}")
        if fault := _fault_of(self.access_key):
            raise ConfigError(f"access_key must be a non-empty str, {fault}: {shown(self.access_key)}")
        _check_secret("secret_key", _fault_of(self.secret_key))
        _check_secret("security_token", _fault_of(self.security_token) if self.security_token is not None else "")

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"


def _fault_of(secret: object) -> str:
    """Return what is wrong with a secret, as part of an error message, or "" if it is valid.

    The function raises no error itself, because a traceback may show the variables of its frames, which would include the secret.
    """
    if not isinstance(secret, str):
        return f"not {type(secret).__name__}"
    try:
        secret.encode()
    except UnicodeEncodeError:
        return "not one that UTF-8 cannot encode"
    return "" if secret else "not an empty one"


def _check_secret(name: str, fault: str) -> None:
    if fault:
        raise ConfigError(f"{name} must be a non-empty str, {fault}")
