"""One run of one side in a process of its own, watched from outside: ``run_once``.

A side, ours or a peer, prints "edge start" and "edge end" at the edges of its window and then one line of JSON. What it counts is
what was acknowledged to it. At the same edges this process asks the broker how many messages the topic's queues hold, over a
connection of its own (8 small requests each time, the same for all sides): their increase over the time between the two answers
is the rate at which messages became *visible*, which is what a consumer gets. Where a client is acknowledged faster than the
broker indexes, or before it has stored, the two rates differ. Before and after the run the queues are counted again, after it until
they hold still: acknowledged and not stored is seen so. The proxy's CPU and that of the whole machine are taken at the edges too.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rmq_protocol.signing import SessionCredentials
from support.bare_loop import BareError, BareProducer
from support.clusters import stored_messages
from support.compare_peers import without_places
from support.runs import SECRET_KEY, RunSpec, busy_seconds, process_seconds

__all__ = ["Job", "Run", "run_once"]

EXTRA: Final = 60.0
"""Seconds a run may take beyond its warm-up and window."""
LINE_LIMIT: Final = 1 << 20


class Job(msgspec.Struct, kw_only=True, frozen=True):
    """``command``: what takes the specification as its last argument. ``environment``: None for our own."""

    key: str
    command: Sequence[str]
    spec: RunSpec
    environment: Mapping[str, str] | None = None
    proxy_pid: int | None = None
    namesrv: str = ""
    """Where the queues are counted."""
    credentials: SessionCredentials | None = None
    """Of a broker that refuses unsigned requests; the side signs with them, too."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment of the side's process."""
        secret = {} if self.credentials is None else {SECRET_KEY: self.credentials.secret_key}
        return {**(os.environ if self.environment is None else self.environment), **secret}


class Run(msgspec.Struct, kw_only=True):
    """Times in microseconds (``_us``) or seconds; what a side does not report is None. ``total``: acknowledged in the whole run.

    ``visible_rate``: by the queues, in the window. ``read_back``: stored messages whose content was looked at, where it was.
    ``error``: why there are no figures.
    """

    side: str
    mode: str
    messages: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    client_us: float = 0.0
    broker_us: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    max_us: float | None = None
    rss_mb: float | None = None
    total: int = 0
    failures: dict[str, int] = {}
    visible_rate: float | None = None
    proxy_us: float | None = None
    other_cores: float | None = None
    stored: int | None = None
    read_back: int | None = None
    error: str | None = None

    @property
    def lost(self) -> int:
        """Acknowledged and not stored."""
        return 0 if self.stored is None else max(0, self.total - self.stored)

    @property
    def usable(self) -> bool:
        return self.error is None and self.messages > 0


class _Edge:
    """What is seen from outside at one edge of the window."""

    def __init__(self, job: Job, at: float, visible: int) -> None:
        self.at = at
        self.visible = visible
        self.busy = busy_seconds()
        self.proxy = process_seconds(job.proxy_pid) if job.proxy_pid else None


async def run_once(job: Job) -> Run:
    """Never raises for what the side does: a run that ends badly has an ``error``."""
    spec = job.spec
    before = await stored_messages_of(job)
    counter = BareProducer(spec.topic, credentials=job.credentials)
    await counter.start(job.namesrv)
    edges: dict[str, _Edge] = {}
    process = await asyncio.create_subprocess_exec(
        *job.command,
        msgspec.json.encode(spec).decode(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=job.variables,
        cwd=None if job.environment is None else job.environment["HOME"],
        limit=LINE_LIMIT,
    )
    try:
        limit = spec.seconds + spec.warm_up + EXTRA
        (last, error), said = await asyncio.wait_for(
            asyncio.gather(_lines(process, job, counter, edges), _end_of(process.stderr)), limit
        )
        code = await process.wait()
    except TimeoutError:
        last, error, said, code = "", f"no result after {limit:.0f} s", "", 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await counter.stop()
    if not error and code:
        error = f"exit code {code}: {_last_line(said)}"
    run = _decoded(last, spec) if not error else Run(side=spec.side, mode=spec.mode, error=without_places(error))
    if run.error is None:
        run.stored = await stored_messages_of(job, before + run.total) - before
        _complete(run, edges)
    return run


async def stored_messages_of(job: Job, at_least: int = 0) -> int:
    """As ``send.stored_messages``, which runs in a loop of its own."""
    return await stored_messages(job.namesrv, job.spec.topic, at_least, credentials=job.credentials)


async def _lines(
    process: asyncio.subprocess.Process, job: Job, counter: BareProducer, edges: dict[str, _Edge]
) -> tuple[str, str]:
    """The last line that is JSON, and what went wrong."""
    assert process.stdout is not None
    last, error = "", ""
    async for raw in process.stdout:
        line = raw.decode(errors="replace").strip()
        if line in ("edge start", "edge end"):
            try:
                first = time.perf_counter()
                visible = await counter.max_offsets()
                edges[line] = _Edge(job, (first + time.perf_counter()) / 2, visible)
            except BareError as problem:
                error = f"the queues could not be counted: {problem}"
        elif line.startswith("{"):
            last = line
    return last, error


async def _end_of(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    said = b""
    while piece := await stream.read(65_536):
        said = (said + piece)[-4000:]
    return said.decode(errors="replace")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing on its standard error"


def _decoded(line: str, spec: RunSpec) -> Run:
    try:
        run = msgspec.json.decode(line, type=Run)
    except msgspec.MsgspecError as error:
        return Run(side=spec.side, mode=spec.mode, error=f"no result: {error}")
    if run.messages <= 0:
        what = ", ".join(f"{number:,} x {text}" for text, number in run.failures.items())
        run.error = f"nothing was acknowledged in the window; failed: {without_places(what) or 'nothing'}"
    run.failures = {without_places(text): number for text, number in run.failures.items()}
    return run


def _complete(run: Run, edges: Mapping[str, _Edge]) -> None:
    start, end = edges.get("edge start"), edges.get("edge end")
    if start is None or end is None or end.at <= start.at:
        return
    between = end.at - start.at
    run.visible_rate = (end.visible - start.visible) / between
    proxy = 0.0
    if start.proxy is not None and end.proxy is not None:
        proxy = (end.proxy - start.proxy) / between
        run.proxy_us = proxy * 1e6 / run.rate
    if run.broker_us is not None:
        own = (run.client_us + run.broker_us) * run.rate / 1e6
        run.other_cores = max(0.0, (end.busy - start.busy) / between - own - proxy)


def our_command() -> list[str]:
    return [sys.executable, os.fspath(Path(__file__).with_name("one_run.py"))]
