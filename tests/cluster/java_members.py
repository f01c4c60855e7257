"""Members of a consumer group that are the official client's push consumers, all in one JVM (GroupMembers.java)."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

from ..support.java.program import started

__all__ = ["JavaMember", "JavaMembers", "java_members"]


class JavaMember:
    """One push consumer. ``reading``: done when it has queues."""

    def __init__(self, name: str, place: JavaMembers, file: Path) -> None:
        self.name = name
        self.place = place
        self.reading = asyncio.create_task(place.ask(f"join {name}", str(file)))

    async def end(self, number: signal.Signals) -> tuple[int, float]:
        """Calls ``shutdown()``; returns 0 and the seconds. Only for SIGTERM, whose shutdown hooks do the same."""
        assert number is signal.SIGTERM
        await self.reading
        began = monotonic()
        assert await self.place.ask(f"leave {self.name}") == "ok"
        return 0, monotonic() - began

    async def close(self) -> None:
        """Its JVM ends it."""
        self.reading.cancel()
        await asyncio.wait([self.reading])


class JavaMembers:
    """The JVM. ``errors``: its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.errors: list[str] = []
        self._answers: dict[str, asyncio.Future[str]] = {}

    def join(self, name: str, file: Path) -> JavaMember:
        return JavaMember(name, self, file)

    async def differences(self, members: int) -> str:
        """How the queues of the members, of either kind, differ from the shares of Java's AVG; "equal" if they do not."""
        return await self.ask(f"shares {members}")

    async def ask(self, what: str, *more: str) -> str:
        """Sends a line; returns the answer to it."""
        assert self.process.stdin is not None
        answer = self._answers[what] = asyncio.get_running_loop().create_future()
        self.process.stdin.write(" ".join((what, *more)).encode() + b"\n")
        return await answer

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            command, name, result = line.decode().rstrip().split(" ", 2)
            self._answers.pop(f"{command} {name}").set_result(result)
        for answer in self._answers.values():
            answer.set_exception(RuntimeError("the JVM has ended"))

    async def collect_errors(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.errors.append(line.decode(errors="replace"))


@asynccontextmanager
async def java_members(
    namesrv: str,
    group: str,
    work: float,
    await_termination: float = 0.0,
    *,
    orderly: bool = False,
    topic: str | None = None,
    latest: bool = False,
) -> AsyncIterator[JavaMembers]:
    """``topic``: None if it has the name of the group. ``work``: the longest listener takes so many seconds. ``await_termination``:
    seconds for which ``shutdown()`` waits for running listeners; 0 is the default of the client. ``orderly``: whether the
    listeners are MessageListenerOrderly. ``latest``: whether the group begins at the end of queues without offsets."""
    with tempfile.TemporaryDirectory(prefix="rmq-java-home-") as home:
        numbers = (str(round(work * 1000)), str(round(await_termination * 1000)))
        kinds = ("orderly" if orderly else "concurrently", "LAST" if latest else "FIRST")
        async with started(Path(home), "GroupMembers", namesrv, group, topic or group, *numbers, *kinds) as process:
            members = JavaMembers(process)
            tasks = [asyncio.create_task(members.listen()), asyncio.create_task(members.collect_errors())]
            try:
                yield members
            finally:
                process.kill()
                await asyncio.gather(*tasks)
