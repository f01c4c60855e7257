"""A program in a terminal: a pseudo-terminal, whose screen ``pyte`` keeps as a terminal would."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import termios
from types import TracebackType
from typing import Self

import pyte

from .support import START, environment

__all__ = ["Terminal"]


class Terminal:
    """Runs ``rmq`` with ``arguments`` until the block is left."""

    def __init__(self, *arguments: str, columns: int = 110, lines: int = 30) -> None:
        self._arguments = arguments
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.process: asyncio.subprocess.Process | None = None
        self.sent = b""
        """All that the program has written."""

    async def __aenter__(self) -> Self:
        self._mine, theirs = os.openpty()
        self.resize(self._screen.columns, self._screen.lines)
        self.settings = termios.tcgetattr(theirs)
        kept = {name: text for name, text in environment().items() if name not in ("COLUMNS", "LINES")}
        self.process = await asyncio.create_subprocess_exec(
            *START, *self._arguments, stdin=theirs, stdout=theirs, stderr=theirs, env={**kept, "TERM": "xterm-256color"},
            start_new_session=True,
        )  # fmt: skip
        self._theirs = theirs
        os.set_blocking(self._mine, False)
        asyncio.get_running_loop().add_reader(self._mine, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process is not None:
            if self.process.returncode is None:
                self.process.kill()
            await self.process.wait()
        self.vanish()

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def table(self, title: str) -> list[list[str]]:
        """The words of the rows below a title and the headings."""
        lines = self.lines
        begin = next((number for number, line in enumerate(lines) if line.split()[:1] == [title]), len(lines))
        rows = []
        for line in lines[begin + 2 :]:
            if line.split()[:1] in ([], ["Topics"], ["Groups"], ["Brokers"], ["q"], ["filter:"]):
                break
            rows.append(line.split())
        return rows

    def press(self, keys: str) -> None:
        os.write(self._mine, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        fcntl.ioctl(self._mine, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if self.process is not None:
            self.process.send_signal(signal.SIGWINCH)  # the kernel sends it to programs whose terminal this is

    def vanish(self) -> None:
        """Closes the terminal. As it controls no session here, nothing gets SIGHUP."""
        if self._mine >= 0:
            asyncio.get_running_loop().remove_reader(self._mine)
            os.close(self._mine)
            os.close(self._theirs)
            self._mine = -1

    def hold(self) -> None:
        """Stops the output, as Ctrl-S does."""
        termios.tcflow(self._theirs, termios.TCOOFF)

    @property
    def blocking(self) -> bool:
        return os.get_blocking(self._theirs)

    async def ended(self) -> int:
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), 60)

    def settings_now(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def _read(self) -> None:
        try:
            data = os.read(self._mine, 1 << 16)
        except (BlockingIOError, OSError):
            return
        self.sent += data
        self._stream.feed(data)
