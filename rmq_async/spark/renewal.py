"""Provides credentials that change while a query runs. They come from a file, or from a function that the driver and the
executors can import.

A reader or writer is pickled once, so it holds the path or the name instead of a secret. Each task, and each request of a
planner, uses the credentials that are valid at that time (``current``; the result of a function is used for ``PROVIDED_FOR``
seconds). New credentials lead to a new client, and the worker closes the old client when it is unused. While credentials cannot
be read, the previous credentials are used.

A file on a blocked mount, or a function that waits for a service, may take any time. Therefore, a separate thread reads the
credentials, and callers wait up to ``LONGEST`` seconds for it. After one caller has waited in vain, later callers that have
previous credentials do not wait.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Final

from .._text import printable
from .._threads import NoThreadError, start_thread
from ..credentials import Credentials
from ..errors import ConfigError
from .connection import Access

logger = logging.getLogger(__name__)

PROVIDED_FOR: Final = 30.0
"""Seconds until a function is called again, because a planner needs credentials many times per second. It is also the interval
between two warnings.
"""
LONGEST_FILE: Final = 65_536
LONGEST: Final = 30.0
"""Maximum number of seconds that a caller waits for credentials."""


@dataclass(frozen=True)
class _Kept:
    """The last valid credentials.

    Attributes:
        at: Time at which the credentials were read.
        warned: Time of the last warning that these credentials are still in use.
    """

    credentials: Credentials
    at: float
    warned: float = float("-inf")


class _Question:
    """A thread that reads credentials or calls the function for them.

    Attributes:
        late: Whether a caller has waited in vain for the thread.
    """

    def __init__(self, access: Access) -> None:
        self.late = False
        self._access = access
        self._over = threading.Event()
        self._found: Credentials | ConfigError | None = None
        try:
            start_thread(self._ask, "rmq_async credentials")
        except NoThreadError as error:
            self._found = ConfigError(f"option {_asked(access)} cannot be used: {error}")
            self._over.set()

    def _ask(self) -> None:
        try:
            file = self._access.credentials_file
            self._found = _read(file) if file is not None else _provided(str(self._access.credentials_provider))
        except ConfigError as error:
            self._found = error
        finally:
            self._over.set()

    def answer(self, patient: bool) -> Credentials | ConfigError:
        """Return the credentials, or the error that prevented reading them.

        Args:
            patient: True waits for credentials even if another caller has waited without success.
        """
        if not self._over.wait(LONGEST if patient or not self.late else 0.0):
            self.late = True
            return ConfigError(
                f"option {_asked(self._access)} has not returned in {LONGEST:g} s; check the file system or service behind it"
            )
        return self._found or ConfigError(
            f"option {_asked(self._access)} ended its thread; it must return or raise an Exception"
        )

    @property
    def over(self) -> bool:
        return self._over.is_set()


_Key = tuple[str | None, str | None]

_kept: dict[_Key, _Kept] = {}
_questions: dict[_Key, _Question] = {}
_lock = threading.Lock()


def _asked(access: Access) -> str:
    if access.credentials_file is not None:
        return f"credentialsFile: {access.credentials_file}"
    return f"credentialsProvider: {access.credentials_provider}"


def current(access: Access) -> Access:
    """Return ``access`` with the credentials that are valid now. If they cannot be read, use the previous credentials of this
    process.

    Raises:
        ConfigError: If there are neither current nor previous credentials.
    """
    if access.credentials_file is None and access.credentials_provider is None:
        return access
    credentials = _current_of(access)
    return replace(
        access,
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        security_token=credentials.security_token,
        credentials_file=None,
        credentials_provider=None,
    )


def forget(access: Access) -> bool:
    """Make the next ``current`` read the credentials again. Return whether there are earlier credentials that it may
    replace.
    """
    key = (access.credentials_file, access.credentials_provider)
    with _lock:
        kept = _kept.get(key)
        if kept is not None:
            _kept[key] = replace(kept, at=-PROVIDED_FOR)
        return kept is not None


def _current_of(access: Access) -> Credentials:
    key = (access.credentials_file, access.credentials_provider)
    with _lock:
        kept = _kept.get(key)
        if kept is not None and access.credentials_provider is not None and monotonic() - kept.at < PROVIDED_FOR:
            return kept.credentials
        question = _questions.get(key)
        if question is None:
            question = _questions[key] = _Question(access)
    found = question.answer(patient=kept is None)
    with _lock:
        if question.over and _questions.get(key) is question:
            del _questions[key]
        if isinstance(found, Credentials):
            _kept[key] = _Kept(found, monotonic())
            return found
        if kept is None:
            raise found
        warns = monotonic() - kept.warned >= PROVIDED_FOR
        if warns:
            _kept[key] = replace(_kept[key], warned=monotonic())
    if warns:
        logger.warning("the previous credentials are used again: %s", printable(found))
    return kept.credentials


def _read(path: str) -> Credentials:
    """Read credentials from a file. Errors name the file and show no secret."""
    try:
        with Path(path).open("rb") as file:
            data = json.loads(file.read(LONGEST_FILE))
    except OSError as error:
        raise ConfigError(
            f"option credentialsFile: {path} cannot be read on this machine: {error.strerror}; every machine needs it"
        ) from None
    except (ValueError, RecursionError):
        raise ConfigError(
            f"option credentialsFile: {path} holds no JSON of at most {LONGEST_FILE} bytes; write an object with accessKey and "
            "secretKey"
        ) from None
    names = {"accessKey", "secretKey", "securityToken"}
    if not isinstance(data, dict) or not {"accessKey", "secretKey"} <= data.keys() <= names:
        raise ConfigError(
            f"option credentialsFile: {path} must hold one JSON object of accessKey, secretKey and, if any, securityToken"
        )
    return _made("credentialsFile", lambda: Credentials(data["accessKey"], data["secretKey"], data.get("securityToken")))


def _provided(name: str) -> Credentials:
    module, _, function = name.partition(":")
    try:
        provider = getattr(importlib.import_module(module), function)
    except Exception as error:  # noqa: BLE001 - code of users, as below
        raise ConfigError(
            f"option credentialsProvider: {name} cannot be imported on this machine ({type(error).__name__}); it must be on driver "
            "and executors"
        ) from None
    try:
        found: Any = provider()
    except Exception as error:  # noqa: BLE001 - code of users; the text of its errors may hold a secret
        raise ConfigError(
            f"option credentialsProvider: {name} raised {type(error).__name__}; call it by itself to see why"
        ) from None
    if isinstance(found, Credentials):
        return found
    if isinstance(found, tuple) and len(found) in (2, 3):
        return _made("credentialsProvider", lambda: Credentials(*found))
    given = f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__
    raise ConfigError(f"option credentialsProvider: {name} must return Credentials or a tuple of 2 or 3 strings, not {given}")


def _made(option: str, make: Callable[[], Credentials]) -> Credentials:
    try:
        return make()
    except ConfigError as error:
        raise ConfigError(f"option {option}: {error}") from None


def _forget_threads() -> None:
    """Reset threads and locks in a forked child, because the parent's threads do not exist here, and one of them may have held
    the lock.
    """
    global _lock
    _lock = threading.Lock()
    _questions.clear()


os.register_at_fork(after_in_child=_forget_threads)
