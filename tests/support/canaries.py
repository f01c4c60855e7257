"""Secrets that must never be seen: what the tests sign with, and a logger that looks for them in every record of the session.

Looked at is what a record would print at level DEBUG, tracebacks included, whether or not anybody listens at that level.
"""

from __future__ import annotations

import logging
from typing import Final

SECRET_KEY: Final = "canary-secret-Zk3vQ8"
SECURITY_TOKEN: Final = "canary-token-Xw7pL2"
CLUSTER_PASSWORD: Final = "adminpass"
"""Of the user that the launcher's profiles with users have."""

SECRETS: Final = (SECRET_KEY, SECURITY_TOKEN, CLUSTER_PASSWORD)

found: list[str] = []
"""The records that held one, and where they were made."""
looked_at = 0

_format = logging.Formatter("%(message)s").format


def is_clean(text: str) -> bool:
    """Whether it shows none of them."""
    return not any(secret in text for secret in SECRETS)


class CanaryLogger(logging.Logger):
    """Makes and looks at every record; passes on those that are wanted, as any logger does."""

    def isEnabledFor(self, level: int) -> bool:
        return True

    def callHandlers(self, record: logging.LogRecord) -> None:
        global looked_at
        looked_at += 1
        text = _format(record)
        record.exc_text = None
        if not is_clean(text):
            found.append(f"{record.name} {record.pathname}:{record.lineno}: {text}")
        if super().isEnabledFor(record.levelno):
            super().callHandlers(record)
