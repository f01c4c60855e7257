"""Options of every command: its user and its transport; the secret comes from the environment and is never shown."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization

from rmq_async import ClientConfig, Credentials
from rmq_async.cli.options import client_config, client_options
from rmq_async.testing._certificates import Certificates

from ..support.canaries import SECRET_KEY, SECURITY_TOKEN, is_clean


@pytest.fixture(autouse=True)
def same_log_level() -> Iterator[None]:
    """A command quietens the client; the entry point that undoes it is not part of these tests."""
    logger = logging.getLogger("rmq_async")
    before = logger.level
    yield
    logger.setLevel(before)


def config_of(*arguments: str, **environment: str) -> ClientConfig:
    """What a command gets; raises what it raises."""
    made: list[ClientConfig] = []

    @click.command()
    @client_options
    def command(namesrv: str | None, timeout: float, as_json: bool) -> None:
        made.append(client_config(namesrv, timeout))

    unset = {"RMQ_ACCESS_KEY": None, "RMQ_SECRET_KEY": None, "RMQ_SECURITY_TOKEN": None}
    CliRunner().invoke(
        command, ["--namesrv", "h:1", *arguments], env={**unset, **environment}, standalone_mode=False, catch_exceptions=False
    )
    return made[0]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = Certificates.make(tmp_path_factory.mktemp("certificates")).directory
    key = serialization.load_pem_private_key((directory / "client.key").read_bytes(), password=None)
    (directory / "locked.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"open")
        )
    )
    return directory


def test_without_any_of_them_there_is_neither_user_nor_tls() -> None:
    config = config_of(RMQ_SECRET_KEY=SECRET_KEY)
    assert (config.credentials, config.tls, config.server_hostname) == (None, False, None)


def test_a_user_is_named_by_option_or_environment_and_the_secret_by_the_environment() -> None:
    assert config_of("--access-key", "a", RMQ_SECRET_KEY=SECRET_KEY).credentials == Credentials("a", SECRET_KEY)
    environment = {"RMQ_ACCESS_KEY": "b", "RMQ_SECRET_KEY": SECRET_KEY, "RMQ_SECURITY_TOKEN": SECURITY_TOKEN}
    assert config_of(**environment).credentials == Credentials("b", SECRET_KEY, SECURITY_TOKEN)
    assert config_of("--access-key", "a", **environment).credentials == Credentials("a", SECRET_KEY, SECURITY_TOKEN)


def test_tls() -> None:
    verified, insecure = config_of("--tls", "--server-name", "mq.example"), config_of("--insecure")
    assert (verified.tls, verified.tls_verify, verified.server_hostname) == (True, True, "mq.example")
    assert (insecure.tls, insecure.tls_verify) == (True, False)


def test_files_imply_tls_and_are_used(files: Path) -> None:
    context = config_of("--ca", str(files / "ca.pem")).tls
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    own = config_of("--cert", str(files / "client.pem"), "--cert-key", str(files / "client.key"), "--insecure").tls
    assert isinstance(own, ssl.SSLContext)
    assert own.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--access-key", "a"], "access key 'a' needs its secret: set RMQ_SECRET_KEY"),
        (["--cert-key", "{}/client.key"], "--cert-key is the key of a --cert"),
        (["--ca", "{}/ca.pem", "--insecure"], "give one of them"),
        (["--server-name", "x"], "--server-name needs --tls, --ca or --cert"),
        (["--ca", "{}/client.key"], "client.key cannot be used"),
        (["--cert", "{}/client.pem"], "client.pem cannot be used"),
        (["--ca", "{}/missing.pem"], "does not exist"),
        (["--cert", "{0}/client.pem", "--cert-key", "{0}/server.key"], "client.pem with the key "),
        (
            ["--cert", "{0}/client.pem", "--cert-key", "{0}/server.key"],
            "server.key cannot be used: KEY_VALUES_MISMATCH; give readable PEM files, and the private key of the certificate",
        ),
        (["--cert", "{0}/client.pem", "--cert-key", "{0}/locked.key"], "locked.key cannot be used: the key is encrypted"),
    ],
)
def test_wrong_use_is_reported(files: Path, arguments: list[str], said: str) -> None:
    environment: dict[str, Any] = {} if "--access-key" in arguments else {"RMQ_SECRET_KEY": SECRET_KEY, "RMQ_ACCESS_KEY": "a"}
    with pytest.raises(click.UsageError) as caught:
        config_of(*[argument.format(files) for argument in arguments], **environment)
    assert said in caught.value.format_message()
    assert is_clean(caught.value.format_message())
