"""messense's ``rocketmq`` in pull.py: ``python pull.py NAMESRV TOPIC MESSAGES WARM_UPS BROKER_PID``, a line of JSON.

``PullConsumer.pull`` is the only way it has to read a topic: one queue after the other, one pull at a time.
"""

from __future__ import annotations

import json
import os
import sys
import time

from rocketmq.client import PullConsumer


def process_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read(consumer: PullConsumer, topic: str, messages: int) -> tuple[int, int]:
    consumer.offset_table.clear()
    count = size = 0
    for message in consumer.pull(topic):
        count += 1
        size += len(message.body)
        if count == messages:  # what follows is a last, empty answer of the last queue
            break
    return count, size


namesrv, topic, messages, warm_ups, broker = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
consumer = PullConsumer("benchmark-messense")
consumer.set_namesrv_addr(namesrv)
consumer.start()
for _ in range(warm_ups):
    read(consumer, topic, messages)
broker_before = process_seconds(broker) if broker else 0.0
start, cpu = time.perf_counter(), time.process_time()
count, size = read(consumer, topic, messages)
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
result = {
    "messages": count,
    "bytes": size,
    "seconds": seconds,
    "client_seconds": cpu,
    "broker_seconds": process_seconds(broker) - broker_before if broker else None,
}
with open("/proc/self/status") as file:
    result["rss_mb"] = next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
print(json.dumps(result), flush=True)
os._exit(0)  # its shutdown waits for threads of its own
