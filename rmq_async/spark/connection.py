"""How a query reaches its cluster: what the options say, as it travels to executors, and what a client is made of there.

``Access`` is plain data, because it is pickled with readers and writers; files are opened and contexts made where it is used.
Secrets are in no ``repr``; where no option gives them they come from the environment of the driver.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field

from ..config import ClientConfig, name_servers
from ..credentials import Credentials
from ..errors import ConfigError

__all__ = ["Access", "access_of", "client_config"]

NAMESRV_ENVIRONMENT = "NAMESRV_ADDR"


@dataclass(frozen=True, kw_only=True)
class Access:
    """``name_servers``: as given or from the environment of the driver. ``files``: authorities, certificate, its key."""

    name_servers: tuple[str, ...]
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_verify: bool = True
    files: tuple[str | None, str | None, str | None] = (None, None, None)
    server_name: str | None = None
    namespace: str | None = None
    namespace_v2: str | None = None
    request_timeout: float = 3.0
    vip_channel: bool = False


def access_of(
    *,
    nameserver: str | None,
    access_key: str | None,
    secret_key: str | None,
    security_token: str | None,
    tls: bool,
    tls_verify: bool,
    tls_files: tuple[str | None, str | None, str | None],
    server_name: str | None,
    namespace: str | None,
    namespace_v2: str | None,
    request_timeout: float,
    vip_channel: bool,
) -> Access:
    """Checked as far as it can be without opening anything. Raises ConfigError that names the option."""
    text = nameserver if nameserver is not None else os.environ.get(NAMESRV_ENVIRONMENT)
    if not text:
        raise ConfigError(f"no name server is known: give the option nameserver or set {NAMESRV_ENVIRONMENT}")
    servers = name_servers(text.replace(",", ";"))
    access_key = access_key or os.environ.get("RMQ_ACCESS_KEY") or None
    if access_key:
        secret_key = secret_key or os.environ.get("RMQ_SECRET_KEY") or None
        security_token = security_token or os.environ.get("RMQ_SECURITY_TOKEN") or None
        if not secret_key:
            raise ConfigError("option accessKey needs secretKey, or RMQ_SECRET_KEY in the environment")
    elif secret_key or security_token:
        raise ConfigError("options secretKey and securityToken need accessKey")
    tls = tls or any(tls_files)
    if tls_files[2] and not tls_files[1]:
        raise ConfigError("option tlsKeyFile is the key of tlsCertFile, which is missing")
    if not tls_verify and tls_files[0]:
        raise ConfigError("option tlsCaFile says whom to trust, and tlsVerify=false to trust anybody; give one of them")
    if not tls and (not tls_verify or server_name):
        raise ConfigError(f"option {'tlsVerify' if not tls_verify else 'tlsServerName'} needs tls")
    access = Access(
        name_servers=tuple(servers),
        access_key=access_key,
        secret_key=secret_key if access_key else None,
        security_token=security_token if access_key else None,
        tls=tls,
        tls_verify=tls_verify,
        files=tls_files,
        server_name=server_name,
        namespace=namespace,
        namespace_v2=namespace_v2,
        request_timeout=request_timeout,
        vip_channel=vip_channel,
    )
    client_config(access, with_files=False)
    return access


def client_config(access: Access, *, with_files: bool = True) -> ClientConfig:
    """What our clients take. Raises ConfigError where a file cannot be used."""
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
        raise ConfigError(f"{files} cannot be used: {getattr(error, 'reason', None) or error}") from None
    if not access.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
