"""Counts what a send costs, in numbers that no other process changes: ``python benchmarks/instructions.py [CHECKOUT]``.

Bytecodes of the client per message, by function; and processor instructions in user space per message, where valgrind is
installed. The peer is another process, which answers with canned text; the client's clocks are counters. Two runs differ by
about 0.1 %, so a change of half a percent is seen on a busy machine. Instructions are not time: caches and the kernel are left out.

CHECKOUT, an older version, is counted beside this one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

HERE: Final = Path(__file__).resolve().parent
SUPPORT: Final = HERE / "support"
KINDS: Final = ("plain", "real", "batches", "sharding-key", "async", "oneway", "hook", "trace")
FEW: Final = 1_280
"""Messages of the shorter of two runs under valgrind; what they differ by is free of the start."""
LONGEST: Final = 300
"""Seconds of one run at most."""
COLLECTED: Final = re.compile(r"Collected : (\d+)")


@contextmanager
def peer() -> Iterator[str]:
    """Yields the port of a canned peer."""
    process = subprocess.Popen(
        [sys.executable, SUPPORT / "canned_peer.py", str(2 * LONGEST)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def client(root: Path, before: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs ``instructions_run.py`` with the library of ``root``. Raises CalledProcessError where it fails."""
    paths = os.pathsep.join([str(root), str(root / "protocol")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"}
    command = [*before, sys.executable, str(SUPPORT / "instructions_run.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=LONGEST)


def bytecodes(root: Path, kind: str, messages: int) -> dict[str, float]:
    """Returns bytecodes per message, by function."""
    with peer() as port:
        return msgspec.json.decode(client(root, (), port, kind, str(messages), "bytecodes").stdout, type=dict[str, float])


def instructions(root: Path, kind: str, messages: int) -> float:
    """Returns processor instructions per message."""
    valgrind = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
    with peer() as port:
        few, many = (client(root, valgrind, port, kind, str(count)).stderr for count in (FEW, FEW + messages))
    found = [COLLECTED.search(text) for text in (few, many)]
    if found[0] is None or found[1] is None:
        raise RuntimeError(f"valgrind printed no count of instructions: {many[-300:]!r}")
    return (int(found[1][1]) - int(found[0][1])) / messages


def report(kind: str, roots: Sequence[Path], messages: int, functions: int) -> None:
    """Prints the counts of one kind of message, this version first."""
    counts = [bytecodes(root, kind, messages) for root in roots]
    totals = [sum(count.values()) for count in counts]
    print(f"{kind}: {_beside(totals)} bytecodes per message", flush=True)
    for name in list(counts[0])[:functions]:
        print(f"    {_beside([count.get(name, 0.0) for count in counts]):>28}  {name}")
    if shutil.which("valgrind") is None:
        print("    no valgrind here: processor instructions are not counted")
    else:
        print(f"    {_beside([instructions(root, kind, messages) for root in roots])} instructions per message", flush=True)


def _beside(figures: Sequence[float]) -> str:
    new = f"{figures[0]:,.1f}"
    return new if len(figures) == 1 or not figures[1] else f"{new} (before {figures[1]:,.1f}, x {figures[0] / figures[1]:.3f})"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="instructions.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", nargs="?", type=Path, help="an older version: a folder with rmq_async and protocol")
    parser.add_argument("--with", dest="kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--messages", type=int, default=4_096, help="counted, a multiple of 64 (default: 4096)")
    parser.add_argument("--functions", type=int, default=6, help="printed, those with the most bytecodes (default: 6)")
    options = parser.parse_args(given)
    if options.messages < 64 or options.messages % 64:
        parser.error(f"--messages must be a multiple of 64, not {options.messages}")
    if options.checkout is not None and not (options.checkout / "rmq_async").is_dir():
        parser.error(f"{options.checkout} has no folder rmq_async")
    roots = [HERE.parent, *([] if options.checkout is None else [options.checkout.resolve()])]
    try:
        for kind in options.kinds:
            report(kind, roots, options.messages, options.functions)
    except subprocess.CalledProcessError as error:
        print(f"instructions.py: a run failed: {error.stderr[-500:]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
