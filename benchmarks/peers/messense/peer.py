"""The Python client `rocketmq` (messense; a C++ library behind ctypes), one measured run.

Modes: sync-N (N threads), batch-N (N threads, 32 messages a call).
"""

from __future__ import annotations

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from meter import Meter
from rocketmq.client import Message, Producer, SendStatus

BATCH = 32


def main() -> None:
    meter = Meter()
    producer = Producer("benchmark", timeout=3000)
    producer.set_namesrv_addr(meter.spec["namesrv"])
    producer.start()
    topic, body = meter.spec["topic"], meter.body

    def message() -> Message:
        made = Message(topic)
        made.set_body(body)
        return made

    def check(status: SendStatus) -> None:
        if status != SendStatus.OK:
            raise RuntimeError(f"status {status.name}")

    def single() -> None:
        check(producer.send_sync(message()).status)

    def batch() -> None:
        check(producer.send_batch([message() for _ in range(BATCH)]).status)

    for _ in range(100):  # threads whose first sends look up the route together fail: "No route info"
        try:
            single()
        except Exception:  # noqa: BLE001 - what goes on failing is counted below
            time.sleep(0.1)
        else:
            meter.count += 1
            break
    if meter.kind == "batch":
        meter.run(meter.workers(batch, BATCH))
    else:
        meter.run(meter.workers(single))
    sys.stdout.flush()
    os._exit(0)  # the library's own shutdown takes seconds and sometimes more


if __name__ == "__main__":
    main()
