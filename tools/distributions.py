"""Builds wheel and sdist and tries them in empty environments: ``python tools/distributions.py [--output FOLDER] [--extras A,B]``.

The wheel is built from the sdist, so that a file missing there is seen. Each extra gets an environment of its own, in which its
packages alone are installed; a program there imports what the extra is for. Needs the packages build and twine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
IN_WHEEL: Final = (
    "rmq_async/py.typed", "rmq_protocol/py.typed", "rmq_async/__init__.py", "rmq_protocol/frame.py",
    "pytest_rmq_async.py", "pyspark_rocketmq.py",
)  # fmt: skip
IN_SDIST: Final = (
    "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "tests/conftest.py", "protocol/vectors", "docs/index.md",
    "mkdocs.yml", "tools/cli_page.py",
)  # fmt: skip
PLAIN: Final = """
import asyncio, rmq_async, rmq_protocol
from rmq_async import *
from rmq_async.embedded import EmbeddedRocketMQ
async def main():
    async with EmbeddedRocketMQ() as server, Producer("p", namesrv=server.namesrv) as producer:
        assert (await producer.send(Message("T", b"1"))).status is SendStatus.SEND_OK
rmq_async.run(main())
"""
TRIALS: Final = {
    "": PLAIN,
    "cli": "import subprocess, sys; sys.exit(subprocess.run(['rmq', 'demo', '--messages', '500']).returncode)",
    "compression": "import isal, lz4.frame, zstandard; " + PLAIN.lstrip(),
    "otel": "from rmq_async.otel import OpenTelemetryHook; OpenTelemetryHook()",
    "outbox": "import rmq_async.outbox, rmq_async.inbox; rmq_async.outbox.outbox_table; rmq_async.inbox.Inbox(group='g')",
    "spark": "from rmq_async.spark import RocketMQDataSource as S; import pyspark_rocketmq; assert S.name() == 'rocketmq'",
}
"""A program for each extra; "": without one. Few messages: other environments run beside it, and a demo has a time limit."""


def run(*command: str | Path, **options: str) -> str:
    """Raises SystemExit with the output of a command that fails."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NAMESRV_ADDR")} | options
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, cwd=ROOT)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def build(output: Path) -> tuple[Path, Path]:
    """Returns wheel and sdist; what else is in ``output`` stays."""
    for old in [*output.glob("rmq_async-*.whl"), *output.glob("rmq_async-*.tar.gz")]:
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", output)
    (wheel,), (sdist,) = output.glob("rmq_async-*.whl"), output.glob("rmq_async-*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def missing_files(wheel: Path, sdist: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.namelist()
    found = [f"{wheel.name}: no {name}" for name in IN_WHEEL if name not in packed]
    top = {name.partition("/")[0] for name in packed}
    allowed = {"rmq_async", "rmq_protocol", "pytest_rmq_async.py", "pyspark_rocketmq.py"}
    found += [
        f"{wheel.name}: {name} does not belong there" for name in sorted(top - allowed) if not name.endswith(".dist-info")
    ]
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    return found + [f"{sdist.name}: no {name}" for name in IN_SDIST if not any(each.startswith(name) for each in names)]


def try_in_empty_environment(distribution: Path, extra: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder)
        scripts = Path(folder, "Scripts" if os.name == "nt" else "bin")
        python = scripts / "python"
        wanted = f"{distribution}[{extra}]" if extra else str(distribution)
        pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
        run(*pip, "install", "--quiet", wanted)
        run(*pip, "check")
        run(python, "-W", "error", "-c", TRIALS[extra], PATH=f"{scripts}{os.pathsep}{os.environ['PATH']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where wheel and sdist are left")
    parser.add_argument("--extras", default=",".join(filter(None, TRIALS)), help="which extras to try; default: all")
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    wheel, sdist = build(options.output)
    if found := missing_files(wheel, sdist):
        print(*found, sep="\n")
        return 1
    trials = [(sdist, ""), (wheel, ""), *[(wheel, extra) for extra in filter(None, options.extras.split(","))]]
    for distribution, extra in trials:
        began = time.monotonic()
        try_in_empty_environment(distribution, extra)
        print(f"{distribution.name} {f'with {extra} ' if extra else ''}works ({time.monotonic() - began:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
