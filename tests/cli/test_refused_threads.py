"""Standard streams on a machine that refuses threads."""

from __future__ import annotations

import os

import pytest

from rmq_async.cli.output import Printer
from rmq_async.cli.send import lines_of
from rmq_async.errors import ClientStateError


async def test_output_is_written_without_a_thread(refusing: list[bool], capsys: pytest.CaptureFixture[str]) -> None:
    refusing[0] = True
    printer = Printer()
    await printer.write(b"one\n")
    await printer.write(b"two\n")
    printer.close()
    assert capsys.readouterr().out == "one\ntwo\n"


async def test_input_without_a_thread_is_an_error_of_the_library(refusing: list[bool]) -> None:
    refusing[0] = True
    reader, writer = os.pipe()
    try:
        with pytest.raises(ClientStateError, match=r"no thread can be started \(can't start new thread\); raise the limit"):
            await anext(lines_of(reader, 100))
    finally:
        os.close(reader)
        os.close(writer)
