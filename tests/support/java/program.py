"""The official Java client at work: compiles the program beside this file, runs it, and reads its transcript.

    record = await observe(namesrv)          # all cases against one cluster of one broker "broker-a": a quarter of a minute
    record.lines["batch"]                    # what Java saw, ids and times aside

The jars are those of the launcher (name server and broker need client and tools themselves), so nothing more is resolved. The
program is compiled once on a machine, into a jar beside them, and its first run keeps the class data for the JVMs after it.
``against_embedded`` runs it once per session however many modules compare with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from rmq_async import Admin, Message, MessageExt, Producer, PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing._jars import ClassData, find_java, resolve
from rmq_async.testing.cluster import DEFAULT_VERSION, require

__all__ = [
    "CHECK_INTERVAL",
    "CHECK_MAX",
    "CHECK_TIMEOUT",
    "FROM_PYTHON",
    "Record",
    "against_embedded",
    "observe",
    "require_javac",
    "start_against_embedded",
    "started",
    "strange_replies",
]

CHECK_TIMEOUT: Final = 2.0
CHECK_INTERVAL: Final = 1.0
CHECK_MAX: Final = 3
"""What the transaction cases expect of the broker."""

TO_JAVA: Final = "interop-to-java"
FROM_JAVA: Final = "interop-from-java"
FROM_PYTHON: Final = (
    *(
        Message(
            TO_JAVA,
            f"from Python ☕ {i}".encode(),
            tags=f"Tag{i % 3}",
            keys=(f"key{i}", "second"),
            flag=i,
            properties={"number": f"nº {i}"},
        )
        for i in range(8)
    ),
    Message(TO_JAVA, b"large " * 2_000, tags="Large"),
)
BATCHED: Final = tuple(Message(TO_JAVA, f"batched {i}".encode(), tags="Batch", keys=f"batch{i}") for i in range(3))

ASKS_JAVA: Final = "python-asks-java"
ASKED_BY_JAVA: Final = "java-asks-python"
QUESTIONS: Final = (b"one", b"two", b"large")

_SECONDS = 80
_LOGGING = """\
<configuration>
  <appender name="stderr" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d{HH:mm:ss.SSS} %t %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="stderr"/></root>
</configuration>
"""


@dataclass(frozen=True)
class Record:
    """``lines``: by case, what Java printed. ``received``: what our consumer read of Java's messages. ``replies``: Java's to
    QUESTIONS, in their order. ``errors``: Java's log.
    """

    lines: Mapping[str, Sequence[str]]
    received: Sequence[MessageExt]
    replies: Sequence[MessageExt | BaseException]
    errors: str


def strange_replies(record: Record) -> list[object]:
    """Of the replies to QUESTIONS, those that are not what Java is to say."""
    bodies = {b"large": b"large " * 2_000}
    return [
        (question, reply)
        for question, reply in zip(QUESTIONS, record.replies, strict=True)
        if not isinstance(reply, MessageExt)
        or reply.body != bodies.get(question, b"Java says " + question)
        or reply.topic != "DefaultCluster_REPLY_TOPIC"
        or reply.properties.get("from") != "Java"
        or not reply.store_time_ms
        or reply.msg_id != reply.properties["UNIQ_KEY"]
    ]


def require_javac() -> None:
    """Skips where the program cannot be compiled and run; fails there instead where RMQ_REQUIRE_CLUSTER=1."""
    require()
    if _javac() is None:
        reason = f"no javac beside {find_java()} or in PATH: a JRE is not enough here"
        if os.environ.get("RMQ_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"RMQ_REQUIRE_CLUSTER=1, but {reason}", pytrace=False)
        pytest.skip(reason)


def against_embedded() -> Record:
    """Returns the record of the embedded broker, once for all modules."""
    return start_against_embedded().result()


@functools.cache
def start_against_embedded() -> Future[Record]:
    """Runs the program against the embedded broker in a thread: most of its time it waits."""
    executor = ThreadPoolExecutor(1)
    record = executor.submit(_against_embedded)
    executor.shutdown(wait=False)
    return record


def _against_embedded() -> Record:
    async def run() -> Record:
        server = EmbeddedRocketMQ(
            transaction_timeout=CHECK_TIMEOUT,
            transaction_check_interval=CHECK_INTERVAL,
            transaction_check_max=CHECK_MAX,
            property_filter=False,
        )
        async with server:
            return await observe(server.namesrv)

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(run())


async def observe(namesrv: str) -> Record:
    """Runs every case. Java finds messages of ours, and we read those of Java; each replies to what the other asks meanwhile."""
    async with Producer("python-interop", namesrv=namesrv) as producer:
        for message in FROM_PYTHON:
            await producer.send(message, timeout=15)
        await producer.send_batch(BATCHED, timeout=15)
    with tempfile.TemporaryDirectory(prefix="rmq-java-home-") as home:
        async with _conversation(namesrv) as asked:
            output, errors = await _run(namesrv, Path(home))
    lines: dict[str, list[str]] = {}
    for line in output.splitlines():
        case, _, text = line.partition(": ")
        lines.setdefault(case, []).append(text)
    async with PullConsumer("python-interop-group", namesrv=namesrv) as consumer:
        received = [message async for message in consumer.read(FROM_JAVA)]
    return Record(lines, received, [_outcome(each) for each in asked], errors)


def _outcome(asked: asyncio.Task[MessageExt]) -> MessageExt | BaseException:
    return asyncio.CancelledError() if asked.cancelled() else asked.exception() or asked.result()


@contextlib.asynccontextmanager
async def _conversation(namesrv: str) -> AsyncIterator[list[asyncio.Task[MessageExt]]]:
    """Asks QUESTIONS and answers Java's, while the block runs."""
    async with (
        Admin(namesrv=namesrv) as admin,
        Producer("python-conversation", namesrv=namesrv) as producer,
        PullConsumer("python-conversation-group", namesrv=namesrv) as consumer,
    ):
        for topic in (ASKS_JAVA, ASKED_BY_JAVA):
            await admin.create_topic(topic, queues=1)

        async def answer() -> None:
            async for question in consumer.read(ASKED_BY_JAVA, end=None):
                body = b"large " * 2_000 if question.body == b"large" else b"Python says " + question.body
                await producer.reply(question, body, properties={"from": "Python"}, timeout=15)

        answering = asyncio.create_task(answer())
        asking = [asyncio.create_task(producer.request(Message(ASKS_JAVA, body), timeout=70)) for body in QUESTIONS]
        try:
            yield asking
        finally:
            for task in (answering, *asking):
                task.cancel()
            await asyncio.wait([answering, *asking])
        if not answering.cancelled():
            answering.result()


@contextlib.asynccontextmanager
async def started(home: Path, main_class: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A JVM with a class of this folder, for as long as the block runs; its streams are pipes. ``home``: its files and working
    directory."""
    class_path, data = await asyncio.to_thread(_compiled)
    (home / "logback.xml").write_text(_LOGGING)
    process = await asyncio.create_subprocess_exec(
        find_java() or "java",
        *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-XX:-UsePerfData", "-Dfile.encoding=UTF-8"),
        *(f"-Duser.home={home}", f"-Djava.io.tmpdir={home}", f"-Drmq.logback.configurationFile={home / 'logback.xml'}"),
        *data.options(),
        *("-cp", class_path, main_class, *arguments),
        cwd=home,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(home)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _run(namesrv: str, home: Path) -> tuple[str, str]:
    """Main closes its output at the end of the last case, and waits for the end of its input."""
    async with started(home, "Main", namesrv, "broker-a", str(_SECONDS)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        log = asyncio.create_task(process.stderr.read())
        output = await process.stdout.read()
        if process.returncode is None:
            await asyncio.to_thread(_compiled()[1].write, process.pid)
        process.stdin.close()
        errors = await log
        await process.wait()
    assert process.returncode == 0, errors.decode(errors="replace")[-4000:]
    return output.decode(), errors.decode(errors="replace")


@functools.cache
def _compiled() -> tuple[str, ClassData]:
    """The class path, and the class data of the programs. A jar is there for each state of the sources."""
    needed = resolve(DEFAULT_VERSION)
    sources = sorted(Path(__file__).parent.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    jar = Path(needed.split(os.pathsep)[0]).with_name(f"tests-{digest}.jar")
    if not jar.exists():
        with tempfile.TemporaryDirectory(prefix="rmq-java-classes-", dir=jar.parent) as place:
            _compile(sources, needed, Path(place))
            made = Path(place, jar.name)
            with zipfile.ZipFile(made, "w") as archive:
                for file in sorted(Path(place).glob("*.class")):
                    archive.write(file, file.name)
            made.replace(jar)
    class_path = os.pathsep.join((str(jar), needed))
    return class_path, ClassData(find_java() or "java", "Main", class_path)


def _compile(sources: Sequence[Path], class_path: str, place: Path) -> None:
    options = ["-proc:none", "-encoding", "UTF-8", "-nowarn", "-d", str(place), "-cp", class_path]
    quick = ["-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1"]  # of a compiler that never gets warm
    run = subprocess.run(
        [_javac() or "javac", *quick, *options, *map(str, sources)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def _javac() -> str | None:
    java = find_java()
    beside = shutil.which("javac", path=str(Path(java).resolve().parent)) if java else None
    return beside or shutil.which("javac")
