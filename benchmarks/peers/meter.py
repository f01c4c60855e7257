"""What the two Python peers share: threads or callbacks that count, a window, one line of JSON. The standard library only."""

from __future__ import annotations

import array
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SAMPLED = 8
TICKS = 100.0
POLL = 0.02


class Meter:
    """``spec``: as compare.py gives it; ``kind`` and ``depth``: its mode, "sync-16"."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] = json.loads(sys.argv[1])
        self.kind, _, depth = self.spec["mode"].partition("-")
        self.depth = int(depth)
        self.body = b"x" * self.spec["body"]
        self.count = 0
        self.stop = False
        self.recording = False
        self.latencies = array.array("d")
        self.failures: dict[str, int] = {}
        self._lock = threading.Lock()

    def timed(self, number: int) -> bool:
        return self.depth < 64 or number % SAMPLED == 0

    def stored(self, begun: float, timed: bool, messages: int = 1) -> None:
        with self._lock:
            self.count += messages
        if timed and self.recording:
            self.latencies.append(time.perf_counter() - begun)

    def failed(self, error: BaseException, messages: int = 1) -> None:
        name = f"{type(error).__name__}: {error}".partition("\n")[0][:80]
        with self._lock:
            self.failures[name] = self.failures.get(name, 0) + messages
        time.sleep(0.01)

    def workers(self, send: Callable[[], object], messages: int = 1) -> list[threading.Thread]:
        """One thread for each in flight, sending one after the other."""

        def work(timed: bool) -> None:
            while not self.stop:
                begun = time.perf_counter()
                try:
                    send()
                except Exception as error:  # noqa: BLE001 - counted by its text
                    self.failed(error, messages)
                else:
                    self.stored(begun, timed, messages)

        return [threading.Thread(target=work, args=(self.timed(number),)) for number in range(self.depth)]

    def run(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.start()
        most = self.spec["max_messages"]
        self._until(self.spec["warm_up"], most // 5)
        self.recording = True
        first = self._mark()
        print("edge start", flush=True)
        self._until(self.spec["seconds"], first["messages"] + most * 4 // 5)
        last = self._mark()
        self.recording = False
        print("edge end", flush=True)
        time.sleep(0.1)
        self.stop = True
        for thread in threads:
            thread.join()
        print(json.dumps(self._result(first, last)), flush=True)

    def _until(self, seconds: float, messages: int) -> None:
        deadline = time.perf_counter() + seconds
        while self.count < messages and (left := deadline - time.perf_counter()) > 0:
            time.sleep(min(POLL, left))

    def _mark(self) -> dict[str, Any]:
        pid = self.spec.get("broker_pid")
        with open("/proc/self/status") as file:
            rss = next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
        broker = cpu_seconds(pid) if pid else None
        return {"messages": self.count, "time": time.perf_counter(), "cpu": cpu_seconds("self"), "broker": broker, "rss": rss}

    def _result(self, first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
        messages, seconds = last["messages"] - first["messages"], last["time"] - first["time"]
        per = 1e6 / max(messages, 1)
        latencies = sorted(self.latencies)

        def quantile(share: float) -> float | None:
            return latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1e6 if latencies else None

        return {
            "side": self.spec["side"],
            "mode": self.spec["mode"],
            "messages": messages,
            "seconds": seconds,
            "rate": messages / seconds,
            "client_us": (last["cpu"] - first["cpu"]) * per,
            "broker_us": None if first["broker"] is None else (last["broker"] - first["broker"]) * per,
            "p50_us": quantile(0.5),
            "p99_us": quantile(0.99),
            "p999_us": quantile(0.999),
            "max_us": quantile(1.0),
            "rss_mb": last["rss"],
            "total": self.count,
            "failures": self.failures,
        }


def cpu_seconds(process: int | str) -> float:
    """User and system time of a process, all its threads."""
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
