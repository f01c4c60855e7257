"""The least delay that Python can see: a blocking socket that sends one prebuilt frame again and again and reads the answer.

No loop, no encoding, no ids (all messages carry one), no decoding beyond the frame's length and the answer's code.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import time

from bare_loop import BareProducer, route_of
from runs import Mark, RunResult, RunSpec, State, result_of

__all__ = ["run"]


def run(spec: RunSpec) -> RunResult:
    """One run, as ``one_run`` makes them, of one message in flight."""
    address, frame = asyncio.run(_prepared(spec))
    host, _, port = address.rpartition(":")
    state = State()
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _send_until(state, connection, frame, time.perf_counter() + spec.warm_up, spec.max_messages // 5)
        gc.collect()
        state.recording = True
        start = Mark(state.count, state.count, spec.broker_pid)
        _send_until(state, connection, frame, time.perf_counter() + spec.seconds, start.messages + spec.max_messages * 4 // 5)
        end = Mark(state.count, state.count, spec.broker_pid)
    return result_of(spec, state, start, end)


async def _prepared(spec: RunSpec) -> tuple[str, bytes]:
    producer = BareProducer(spec.topic)
    await producer.start(spec.namesrv)
    address = (await route_of(spec.namesrv, spec.topic)).address
    frame = producer._frame(producer._singles[0], producer.connection.next_opaque(), b"x" * spec.body)
    await producer.stop()
    return address, frame


def _send_until(state: State, connection: socket.socket, frame: bytes, deadline: float, count: int) -> None:
    clock, latencies = time.perf_counter, state.latencies
    length = struct.Struct(">I").unpack_from
    send, receive = connection.sendall, connection.recv
    while state.count < count and (start := clock()) < deadline:
        send(frame)
        answer = receive(65536)
        while len(answer) < 4 or len(answer) < 4 + length(answer)[0]:
            more = receive(65536)
            if not more:
                raise ConnectionError("the broker closed the connection")
            answer += more
        if state.recording:
            latencies.append(clock() - start)
        if b'"code":0,' not in answer:
            raise ValueError(f"the broker refused the message: {answer[8:200]!r}")
        state.count += 1
