"""The keys a client signs its requests with."""

from __future__ import annotations

from rmq_protocol.errors import shown
from rmq_protocol.signing import SessionCredentials

from .errors import ConfigError

__all__ = ["Credentials"]


class Credentials(SessionCredentials, frozen=True):
    """``access_key``: the user's name, ``secret_key``: the password, where brokers have users; ``security_token``: of a session.

    Neither ``repr`` nor an error shows the secret or the token. Raises ConfigError for an empty one.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.access_key, str) or not self.access_key:
            raise ConfigError(f"access_key must be a non-empty text, not {shown(self.access_key)}")
        for name in ("secret_key", "security_token"):
            value = getattr(self, name)
            if value is None and name == "security_token":
                continue
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{name} must be a non-empty text, not {type(value).__name__}")

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"
