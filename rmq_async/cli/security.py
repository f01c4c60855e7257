"""Reads credentials and TLS settings from the options of a command that connects to a cluster.

The secret is read from the environment. It has no option, because other users of a machine can see the arguments of processes.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from rmq_async import Credentials

Command = TypeVar("Command", bound=Callable[..., Any])

ACCESS_KEY: Final = "RMQ_ACCESS_KEY"
SECRET_KEY: Final = "RMQ_SECRET_KEY"  # noqa: S105 - the variable's name
SECURITY_TOKEN: Final = "RMQ_SECURITY_TOKEN"  # noqa: S105 - the same
_KEPT: Final = "rmq_async.security"
_FILE: Final = click.Path(exists=True, dir_okay=False)


def security_options(command: Command) -> Command:
    """Add the options for credentials and TLS. They are not parameters of the command; ``security_settings`` reads them."""
    help_text = f"User to sign requests as; default: ${ACCESS_KEY}. The secret is taken from ${SECRET_KEY}."
    for option in (
        _option("--server-name", metavar="NAME", help="Host name that the servers' certificates must have."),
        _option("--insecure", is_flag=True, help="TLS without verifying the server's certificate."),
        _option("--cert-key", metavar="FILE", type=_FILE, help="Private key of --cert, if that file does not contain it."),
        _option("--cert", metavar="FILE", type=_FILE, help="Certificate of this client; implies --tls."),
        _option("--ca", metavar="FILE", type=_FILE, help="Authorities to trust instead of the system's; implies --tls."),
        _option("--tls", is_flag=True, help="Use TLS, and verify certificates."),
        _option("--access-key", metavar="NAME", help=help_text),
    ):
        command = option(command)
    return command


def security_given() -> bool:
    """Return whether any of the options was given to the running command."""
    return any(click.get_current_context().meta.get(_KEPT, {}).values())


def security_settings() -> dict[str, Any]:
    """Return the fields of ClientConfig from the running command's options.

    Raises:
        UsageError: For options that contradict each other, for an access key without its secret, and for files that cannot be
            used.
    """
    given: dict[str, Any] = click.get_current_context().meta.get(_KEPT, {})
    settings: dict[str, Any] = {}
    access_key = given.get("access_key") or os.environ.get(ACCESS_KEY)
    if access_key:
        settings["credentials"] = _credentials(access_key)
    authorities, certificate, key, insecure = (given.get(name) for name in ("ca", "cert", "cert_key", "insecure"))
    if key and not certificate:
        raise click.UsageError("--cert-key is the key of a --cert, which is missing; give --cert too")
    if insecure and authorities:
        raise click.UsageError("--ca verifies servers, --insecure turns verification off; give one of them")
    if authorities or certificate:
        settings["tls"] = _context(authorities, certificate, key, verify=not insecure)
    elif given.get("tls") or insecure:
        settings |= {"tls": True, "tls_verify": not insecure}
    if given.get("server_name"):
        if "tls" not in settings:
            raise click.UsageError("--server-name needs --tls, --ca or --cert; give one of them, or leave it out")
        settings["server_hostname"] = given["server_name"]
    return settings


def _option(name: str, **settings: Any) -> Callable[[Command], Command]:
    return click.option(name, expose_value=False, callback=_keep, **settings)


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    context.meta.setdefault(_KEPT, {})[parameter.name] = value


def _credentials(access_key: str) -> Credentials:
    if not os.environ.get(SECRET_KEY):
        raise click.UsageError(f"access key {access_key!r} needs its secret: set {SECRET_KEY}")
    return Credentials(access_key, os.environ[SECRET_KEY], os.environ.get(SECURITY_TOKEN) or None)


def _context(authorities: str | None, certificate: str | None, key: str | None, *, verify: bool) -> ssl.SSLContext:
    files = authorities
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate:
            files = f"{certificate} with the key {key}" if key else certificate
            context.load_cert_chain(certificate, key, _encrypted)
    except _EncryptedKeyError:
        raise click.UsageError(f"{files} cannot be used: the key is encrypted; give one that is not") from None
    except (OSError, ValueError) as error:
        raise click.UsageError(
            f"{files} cannot be used: {getattr(error, 'reason', None) or error}; give readable PEM files, and the "
            "private key of the certificate"
        ) from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _EncryptedKeyError(Exception):
    pass


def _encrypted() -> str:
    """Refuse an encrypted key, because OpenSSL would ask for its password on the terminal."""
    raise _EncryptedKeyError
