"""The system's resolver, as a test sets it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_system = socket.getaddrinfo


class Names:
    """``hosts``: name -> addresses, none for an unknown name; other names lead to 127.0.0.1. ``hanging``: names whose look-ups wait
    until ``go`` is set."""

    def __init__(self, **hosts: list[str]) -> None:
        self.hosts = hosts
        self.hanging: set[str] = set()
        self.go = threading.Event()
        self.asked: list[str] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, host: Any, port: Any, *args: Any, **options: Any) -> list[Any]:
        if options.get("flags", 0) & socket.AI_NUMERICHOST:
            return _system(host, port, *args, **options)  # type: ignore[return-value]
        self.asked.append(host)
        self.threads.add(threading.current_thread())
        if host in self.hanging:
            self.go.wait(60)
        found = [each for ip in self.hosts.get(host, ["127.0.0.1"]) for each in _system(ip, port, *args, **options)]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found


@contextmanager
def resolving(**hosts: list[str]) -> Iterator[Names]:
    """Replaces the system's resolver; look-ups that hang end with the block."""
    names = Names(**hosts)
    socket.getaddrinfo = names  # type: ignore[assignment]
    try:
        yield names
    finally:
        socket.getaddrinfo = _system
        names.go.set()
        for thread in names.threads:
            if thread is not threading.current_thread():
                thread.join()
