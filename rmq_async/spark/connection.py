"""The connection of a query to its cluster: name servers, credentials, TLS.

``Access`` holds only data, because it is pickled with readers and writers. The process that uses it opens the files. No
``repr`` shows secrets. Secrets that no option sets are read from the environment of the driver.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from ..config import NAMESRV_ENVIRONMENT, ClientConfig, name_servers
from ..credentials import Credentials
from ..errors import ConfigError

T = TypeVar("T")


class SeveralMistakesError(ConfigError):
    """There are several mistakes in the options of a query.

    Args:
        texts: The texts of all mistakes.
    """

    def __init__(self, message: str = "", *, texts: Sequence[str] = (), **details: Any) -> None:
        super().__init__(message, **details)
        self.texts = tuple(texts)


class Mistakes:
    """Collects the mistakes in the options of a query, in the order in which they are found, so that one error reports all."""

    def __init__(self) -> None:
        self._found: dict[str, ConfigError] = {}

    def add(self, text: str) -> None:
        self._found.setdefault(text, ConfigError(text))

    def result(self, call: Callable[[], T], otherwise: T) -> T:
        """Return the result of ``call``. If it raises ConfigError, keep its mistakes and return ``otherwise``."""
        try:
            return call()
        except SeveralMistakesError as error:
            for text in error.texts:
                self.add(text)
        except ConfigError as error:
            self._found.setdefault(str(error), error)
        return otherwise

    def check(self) -> None:
        """Raise a single mistake unchanged, and several mistakes as one error that numbers them. Do nothing if there are no
        mistakes.
        """
        if len(self._found) == 1:
            raise next(iter(self._found.values()))
        if self._found:
            listed = "; ".join(f"({number}) {text}" for number, text in enumerate(self._found, 1))
            raise SeveralMistakesError(f"{len(self._found)} mistakes: {listed}", texts=tuple(self._found))


_NO_SERVERS: Final[tuple[str, ...]] = ()
_NO_KEYS: Final[tuple[str | None, str | None, str | None]] = (None, None, None)


@dataclass(frozen=True, kw_only=True)
class Access:
    """The options of a connection. ``access_of`` checks them and adds values from the environment.

    Attributes:
        files: The paths of the authorities, the certificate and its key. Each may be None.
        credentials_file: Path of a file from which tasks read credentials at each use, instead of the keys (see ``renewal``).
        credentials_provider: Name of a function from which tasks get credentials at each use, instead of the keys.
        request_timeout: Seconds for one request.
    """

    name_servers: tuple[str, ...] = ()
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    credentials_provider: str | None = None
    tls: bool = False
    tls_verify: bool = True
    files: tuple[str | None, str | None, str | None] = (None, None, None)
    server_name: str | None = None
    namespace: str | None = None
    namespace_v2: str | None = None
    request_timeout: float = 3.0
    vip_channel: bool = False


def access_of(nameserver: str | None, options: Access) -> Access:
    """Add values from the environment, and check everything that can be checked without opening a file.

    Args:
        nameserver: The value of the option ``nameserver``.
        options: The other options as they were given.

    Raises:
        ConfigError: For an invalid option or combination of options, and if there is no name server. One error reports all
            mistakes.
    """
    mistakes = Mistakes()
    servers = mistakes.result(lambda: _name_servers(nameserver), _NO_SERVERS)
    access_key, secret_key, security_token = mistakes.result(lambda: _credentials(options), _NO_KEYS)
    mistakes.result(lambda: _check_tls(options), None)
    mistakes.check()
    access = replace(
        options,
        name_servers=servers,
        access_key=access_key,
        secret_key=secret_key,
        security_token=security_token,
        tls=options.tls or any(options.files),
    )
    client_config(access, with_files=False)
    return access


def _name_servers(nameserver: str | None) -> tuple[str, ...]:
    text = nameserver if nameserver is not None else os.environ.get(NAMESRV_ENVIRONMENT)
    if not text:
        raise ConfigError(f"no name server is known: give the option nameserver or set {NAMESRV_ENVIRONMENT}")
    return tuple(name_servers(text.replace(",", ";")))


def _credentials(options: Access) -> tuple[str | None, str | None, str | None]:
    """Return the access key, the secret key and the token, each from its option or, without the option, from the environment.
    Return None for all of them if there is no access key, or if they are read at each use.
    """
    if options.credentials_file or options.credentials_provider:
        _check_renewed(options)
        return None, None, None
    access_key = options.access_key or os.environ.get("RMQ_ACCESS_KEY") or None
    if not access_key:
        if options.secret_key or options.security_token:
            raise ConfigError("options secretKey and securityToken need accessKey; give it too")
        return None, None, None
    secret_key = options.secret_key or os.environ.get("RMQ_SECRET_KEY") or None
    if not secret_key:
        raise ConfigError("the access key needs its secret: give the option secretKey or set RMQ_SECRET_KEY")
    return access_key, secret_key, options.security_token or os.environ.get("RMQ_SECURITY_TOKEN") or None


def _check_renewed(options: Access) -> None:
    """Check ``credentialsFile`` and ``credentialsProvider`` without opening the file or importing the module, because tasks run on
    other machines.
    """
    if any((options.access_key, options.secret_key, options.security_token)):
        raise ConfigError(
            "credentials are given twice: leave out accessKey, secretKey and securityToken, or credentialsFile and "
            "credentialsProvider"
        )
    name = options.credentials_provider
    parts = (name or "a:b").split(":")
    if len(parts) != 2 or not all(part.isidentifier() for part in (*parts[0].split("."), parts[1])):
        raise ConfigError(f"option credentialsProvider must be module:function, not {name!r}")


def _check_tls(options: Access) -> None:
    authorities, certificate, key = options.files
    if key and not certificate:
        raise ConfigError("option tlsKeyFile is the key of tlsCertFile, which is missing; give both")
    if not options.tls_verify and authorities:
        raise ConfigError("option tlsCaFile verifies servers, tlsVerify=false turns verification off; give one of them")
    if options.tls or any(options.files):
        return
    if not options.tls_verify:
        raise ConfigError("option tlsVerify needs tls=true; give both, or leave it out")
    if options.server_name:
        raise ConfigError("option tlsServerName needs tls=true; give both, or leave it out")


def client_config(access: Access, *, with_files: bool = True) -> ClientConfig:
    """Return the settings of a client.

    Args:
        with_files: False leaves out the files for TLS.

    Raises:
        ConfigError: For an invalid setting, and for a file that cannot be used.
    """
    credentials = None
    if access.access_key and access.secret_key:
        credentials = Credentials(access.access_key, access.secret_key, access.security_token)
    context = _context(access) if with_files and any(access.files) else None
    return ClientConfig(
        namesrv=access.name_servers,
        credentials=credentials,
        tls=context if context is not None else access.tls,
        tls_verify=access.tls_verify or context is not None,
        server_hostname=access.server_name,
        namespace=access.namespace,
        namespace_v2=access.namespace_v2,
        request_timeout=access.request_timeout,
        vip_channel=access.vip_channel,
    )


def _context(access: Access) -> ssl.SSLContext:
    authorities, certificate, key = access.files
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate:
            context.load_cert_chain(certificate, key, "")
    except (OSError, ValueError) as error:
        files = ", ".join(name for name in access.files if name)
        why = getattr(error, "reason", None) or error
        raise ConfigError(
            f"{files} cannot be used: {why}; TLS needs PEM files that this machine can read, with a key that is not encrypted"
        ) from None
    if not access.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
