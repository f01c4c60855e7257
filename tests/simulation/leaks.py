"""Checks for leaks of producers: credits, calls, requests that have ended, pending replies, windows of one-way messages.

It reads the state of producers when they make calls and at the end of a run, and does not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rmq_async.producer import Producer, ProducerState
from rmq_async.producer.oneway import MAX_OPEN, OnewayPacing

SPACING: Final = 1.0
"""Seconds between two looks at one producer; within them an entry whose receiver has its outcome must leave its table."""


class Leaks:
    """The detector of leaks.

    Args:
        now: Returns the seconds since the beginning of the simulation.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._found: dict[str, None] = {}
        self._producers: dict[Producer, tuple[str, float, float]] = {}
        """Machine, time of the first call and time of the last look, by producer."""
        self._ended: dict[Producer, set[tuple[int, int]]] = {}
        """Entries of requests that had ended at the last look: id of the table and opaque."""

    def look(self, producer: Producer, machine: str, what: str) -> None:
        """Look for leaks of a producer that makes a call, once in ``SPACING`` seconds at most.

        For windows at each one-way send.

        Args:
            what: The name of the called method.
        """
        now = self._now()
        _, began, looked = self._producers.setdefault(producer, (machine, now, -SPACING))
        if producer.state is not ProducerState.RUNNING:
            return
        if what == "send_oneway":
            self._look_at_windows(producer, machine)
        if now - looked < SPACING:
            return
        self._producers[producer] = machine, began, now
        ended: set[tuple[int, int]] = set()
        for connection in producer._sender.pool.connections:
            table = connection.requests
            ended |= {(id(table), opaque) for opaque, pending in table.entries.items() if pending.receiver.done()}
            for opaque, frame in table.held.items():
                if frame.pending is not None and frame.pending.receiver.done():
                    self._add(f"held: the frame of request {opaque} of {machine}, which has ended, waits to be written")
        for _, opaque in ended & self._ended.get(producer, set()):
            self._add(f"table: request {opaque} of {machine} is in the table of its connection {SPACING} s after its end")
        self._ended[producer] = ended

    def found(self, ends: Mapping[str, Sequence[float]]) -> list[str]:
        """Return the leaks that were seen, and the leaks of stopped producers, except producers whose process has ended.

        Args:
            ends: Times of ends of processes, by machine.
        """
        for producer, (machine, began, _) in self._producers.items():
            if producer.state is not ProducerState.STOPPED or any(end >= began for end in ends.get(machine, ())):
                continue
            sender = producer._sender
            for credits in (sender.credits, sender.oneway_credits):
                if credits.taken or credits.taken_bytes or credits.waiting:
                    self._add(f"credits: the stopped producer of {machine} has {credits!r}")
            if sender.dispatch.calls or sender.batcher.requests:
                self._add(
                    f"calls: the stopped producer of {machine} has {len(sender.dispatch.calls)} calls and {sender.batcher!r}"
                )
            if len(sender.instance.replies):
                self._add(f"replies: {len(sender.instance.replies)} requests of {machine} wait for a reply after the end")
        return list(self._found)

    def _look_at_windows(self, producer: Producer, machine: str) -> None:
        for connection in producer._sender.pool.connections:
            pacing = connection.attributes.get(OnewayPacing)
            if pacing is not None and pacing.open > MAX_OPEN:
                self._add(f"flood: {machine} had {pacing.open} windows of one-way messages open to {connection.address}")

    def _add(self, text: str) -> None:
        self._found[f"{text} ({self._now():.6f} s)"] = None
