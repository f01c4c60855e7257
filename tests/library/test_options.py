"""Settings as keywords of clients: known to type checkers and to help(), and a misspelt one is answered with the right one."""

from __future__ import annotations

import dataclasses
import inspect
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from rmq_async import (
    Admin,
    Batching,
    ClientConfig,
    Producer,
    ProducerConfig,
    PullConsumer,
    TransactionProducer,
    TransactionStatus,
)
from rmq_async.config import ClientOptions
from rmq_async.producer.config import ProducerOptions

pytestmark = pytest.mark.interpreters

ROOT = Path(__file__).parents[2]

GOOD = """
from typing import Any
from rmq_async import (
    Admin, Batching, ClientConfig, Message, Producer, ProducerConfig, PullConsumer, TransactionProducer, TransactionStatus,
)

def decide(*_: Any) -> TransactionStatus:
    return TransactionStatus.COMMIT

Producer("g", namesrv="h:1", retries=3, request_timeout=1, topics=["T"], batching=Batching(linger=0.1), tls=True)
TransactionProducer("g", execute=decide, check=decide, retries=3, instance_name="i")
PullConsumer("g", namesrv=["h:1"], request_timeout=1.5)
Admin(client=ClientConfig(namesrv="h:1"), client_ip=None)
Producer("g", config=ProducerConfig(retries=3, retry_codes={1}), client=ClientConfig(allowed_broker_hosts=["10.0.0.0/8"]))
anything: dict[str, Any] = {"retries": 3}
Producer("g", **anything)
"""
BAD = [
    'Producer("g", retires=3)',
    'Producer("g", retries="3")',
    'Producer("g", hooks=[object()])',
    'TransactionProducer("g", execute=decide, check=decide, retires=3)',
    'PullConsumer("g", retries=3)',
    'PullConsumer("g", request_timeout="3")',
    "Admin(timeout=3)",
    "ProducerConfig(retires=3)",
    "ClientConfig(namesrv=7)",
    'Message("T", "text")',
]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(GOOD + "\n".join(BAD) + "\n")
    return path


def wrong_lines(path: Path) -> list[int]:
    lines = path.read_text().splitlines()
    return [lines.index(line) + 1 for line in BAD]


def check(path: Path, *command: str) -> list[int]:
    """Numbers of the lines in which a type checker finds errors."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=path.parent)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found = {int(line.split(":")[1]) for line in ended.stdout.splitlines() if "error:" in line and path.name in line}
    return sorted(found)


def test_options_checked_by_mypy(program: Path) -> None:
    pytest.importorskip("mypy")
    found = check(program, sys.executable, "-m", "mypy", "--strict", f"--cache-dir={program.parent}", program.name)
    assert found == wrong_lines(program)


def test_options_checked_by_pyright(program: Path) -> None:
    pyright = shutil.which("basedpyright") or shutil.which("pyright")
    if pyright is None:
        pytest.skip("no pyright is installed")
    paths = ", ".join(f'"{path}"' for path in [str(ROOT), str(ROOT / "protocol")])
    (program.parent / "pyrightconfig.json").write_text(f'{{"extraPaths": [{paths}], "typeCheckingMode": "standard"}}')
    assert check(program, pyright, "--pythonpath", sys.executable, program.name) == wrong_lines(program)


@pytest.mark.parametrize(
    ("options", "configs", "apart"),
    [(ClientOptions, [ClientConfig], {"namesrv"}), (ProducerOptions, [ClientConfig, ProducerConfig], {"namesrv"})],
)
def test_options_equal_the_fields(options: type[Any], configs: list[type[Any]], apart: set[str]) -> None:
    wanted: dict[str, Any] = {}
    for config in configs:
        hints = get_type_hints(config)
        wanted |= {field.name: hints[field.name] for field in dataclasses.fields(config) if field.name not in apart}
    assert get_type_hints(options) == wanted
    assert not options.__required_keys__


@pytest.mark.parametrize(
    ("client", "configs"),
    [
        (Producer, [ClientConfig, ProducerConfig]),
        (TransactionProducer, [ClientConfig, ProducerConfig]),
        (PullConsumer, [ClientConfig]),
        (Admin, [ClientConfig]),
    ],
)
def test_help_lists_the_options(client: type[Any], configs: list[type[Any]]) -> None:
    lines = (inspect.getdoc(client) or "").splitlines()
    for config in configs:
        for field in dataclasses.fields(config):
            if field.name != "namesrv":
                (line,) = [line for line in lines if line.startswith(f"    {field.name}: ")]
                if isinstance(field.default, int | float | str | bool | None):
                    assert line.endswith(f" = {field.default!r}")


def decide(*_: object) -> TransactionStatus:
    return TransactionStatus.COMMIT


@pytest.mark.parametrize(
    ("make", "owner", "given", "meant"),
    [
        (lambda **options: Producer("g", **options), "Producer", "retires", "retries"),
        (lambda **options: Producer("g", **options), "Producer", "nameserver", "namesrv"),
        (lambda **options: Producer("g", **options), "Producer", "configs", "config"),
        (
            lambda **options: TransactionProducer("g", execute=decide, check=decide, **options),
            "TransactionProducer",
            "time_out",
            "timeout",
        ),
        (lambda **options: PullConsumer("g", **options), "PullConsumer", "request_time_out", "request_timeout"),
        (Admin, "Admin", "credential", "credentials"),
        (ClientConfig, "ClientConfig", "name_space", "namespace"),
        (ProducerConfig, "ProducerConfig", "retires", "retries"),
        (Batching, "Batching", "lingers", "linger"),
    ],
)
def test_near_miss_of_an_option(make: Callable[..., object], owner: str, given: str, meant: str) -> None:
    with pytest.raises(TypeError) as caught:
        make(**{given: 3})
    assert str(caught.value) == f"{owner}() got an unexpected keyword argument '{given}': did you mean {meant}?"
    with pytest.raises(TypeError) as caught:
        make(nothing_like_it=3)
    assert str(caught.value) == f"{owner}() got an unexpected keyword argument 'nothing_like_it'"


@pytest.mark.parametrize("config", [ClientConfig, ProducerConfig, Batching])
def test_signature_of_a_config(config: type[Any]) -> None:
    assert list(inspect.signature(config).parameters) == [field.name for field in dataclasses.fields(config)]
    assert dataclasses.replace(config()) == config()
    with pytest.raises(TypeError, match="positional"):
        config(1)
