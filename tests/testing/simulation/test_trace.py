"""The trace covers every frame, and keeps nothing of a stream that is over but its part of the digest."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async.testing.simulation.trace import Trace
from rmq_protocol.command import RemotingCommand, encode_command

from .networks import Hosts, Recorder

FRAME = b"".join(encode_command(RemotingCommand(code=310, opaque=7, body=b"17")))


def test_stream_with_the_name_of_one_that_ended_begins_with_a_frame() -> None:
    trace = Trace()
    trace.add("a:1->b:2", 1, FRAME[:20])  # the rest never comes
    trace.add("a:1->b:2", 2, b"")
    assert len(trace) == 0
    before = trace.digest()
    trace.add("a:1->b:2", 3, FRAME)
    assert trace.digest() != before


def test_digest_says_when_and_where_a_frame_came() -> None:
    digests = []
    for stream, time, data in (("a:1->b:2", 3, FRAME), ("a:1->b:2", 4, FRAME), ("b:2->a:1", 3, FRAME)):
        for ended in (False, True):
            trace = Trace()
            trace.add(stream, time, data)
            if ended:
                trace.add(stream, 5, b"")
            digests.append(trace.digest())
    assert len(set(digests[::2])) == 3
    assert digests[::2] == digests[1::2]


def test_printed_trace_has_a_line_for_each_frame(capsys: pytest.CaptureFixture[str]) -> None:
    Trace(print_frames=True).add("a:1->b:2", 3, FRAME * 2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("3 a:1->b:2 [310,7,")


def test_streams_that_are_over_leave_the_trace() -> None:
    trace = Trace()
    hosts = Hosts(observe=trace.add)

    async def main() -> None:
        for number in range(12):
            near, far = await hosts.pair(far=Recorder(echo=True))
            near.transport.write(FRAME[: -1 - number % 2])
            await near.size(len(FRAME) - 1 - number % 2)
            assert len(trace) == 2
            if number % 4 == 0:
                near.transport.close()
            elif number % 4 == 1:
                far.transport.abort()
            elif number % 4 == 2:
                hosts.link.drop()
            else:
                hosts["server"].power_off()
                hosts["server"].power_on()  # what comes for the stream is answered with a reset
                near.transport.write(b"x")
            await near.lost()
            await asyncio.sleep(1.0)
            assert len(trace) == 0

    hosts.run(main)
