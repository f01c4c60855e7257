"""The gRPC client `rocketmq-python-client`, through the proxy, one measured run.

Modes: sync-N (N threads), async-N (one thread, N under way, futures with callbacks).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from meter import Meter
from rocketmq import ClientConfiguration, Credentials, Message, Producer


def main() -> None:
    meter = Meter()
    topic, body = meter.spec["topic"], meter.body
    producer = Producer(ClientConfiguration(meter.spec["namesrv"], Credentials(), request_timeout=3), (topic,))
    producer.startup()

    def message() -> Message:
        made = Message()
        made.topic = topic
        made.body = body
        return made

    def callbacks() -> None:
        room = threading.Semaphore(meter.depth)
        number = 0

        def over(future: Future[Any], begun: float, timed: bool) -> None:
            if (error := future.exception()) is not None:
                meter.failed(error)
            else:
                meter.stored(begun, timed)
            room.release()

        while not meter.stop:
            room.acquire()
            number += 1
            begun, timed = time.perf_counter(), meter.timed(number)
            try:
                future = producer.send_async(message())
            except Exception as error:  # noqa: BLE001 - counted by its text
                meter.failed(error)
                room.release()
            else:
                future.add_done_callback(lambda done, begun=begun, timed=timed: over(done, begun, timed))
        for _ in range(meter.depth):
            room.acquire(timeout=10)

    if meter.kind == "async":
        meter.run([threading.Thread(target=callbacks)])
    else:
        meter.run(meter.workers(lambda: producer.send(message())))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
