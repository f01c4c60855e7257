"""One measured run of pulls in a process of its own: ``python one_pull.py SPEC`` (JSON) prints one line of JSON.

``one_run.py`` for the other direction: a coroutine for each queue of the topic pulls it from its minimum to its maximum offset,
again and again, 32 messages at a time.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time

import msgspec

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # PYTHONSAFEPATH leaves out a script's own directory
from one_run import run_on_loop
from runs import Mark, RunResult, RunSpec, State, result_of, until

from rmq_async import MessageQueue, PullConsumer

PULLED = 32


async def worker(state: State, consumer: PullConsumer, queue: MessageQueue) -> None:
    clock = time.perf_counter
    offset = await consumer.min_offset(queue)
    while not state.stop:
        start = clock()
        try:
            result = await consumer.pull(queue, offset, max_messages=PULLED)
        except Exception as error:  # noqa: BLE001 - any failure is counted by its text and printed
            state.failed(error, 1)
            await asyncio.sleep(0.01)
            continue
        if not result.messages:
            offset = await consumer.min_offset(queue)
            continue
        offset = result.next_offset
        state.count += len(result.messages)
        if state.recording:
            state.latencies.append(clock() - start)


async def run(spec: RunSpec) -> RunResult:
    async with PullConsumer("benchmark-pulls", namesrv=spec.namesrv) as consumer:
        state = State()
        tasks = [asyncio.ensure_future(worker(state, consumer, queue)) for queue in await consumer.queues(spec.topic)]
        await until(state, spec.warm_up, spec.max_messages)
        gc.collect()
        state.recording = True
        start = Mark(state.count, 0, spec.broker_pid)
        await until(state, spec.seconds, start.messages + spec.max_messages)
        end = Mark(state.count, 0, spec.broker_pid)
        state.stop = True
        await asyncio.wait_for(asyncio.gather(*tasks), 15)
    return result_of(spec, state, start, end)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(run_on_loop(msgspec.json.decode(sys.argv[1], type=RunSpec), run)) + b"\n")
