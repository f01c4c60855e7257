"""The ids by which servers distinguish the clients of this process.

Clients that do not share connections, because they run on two event loops or with two configs, may have the same instance name: by
default, all clients of a process have one name. If two members of a group had the same id, each would take the queues of both and
hold the locks of the other, and a broker would push the replies for both to the client that registered last. Therefore the second
client gets the instance name ``name#2``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Hashable, Iterator
from itertools import count
from threading import Lock

from rmq_protocol.client_id import build_client_id

from .. import machine


class _Taken:
    """The ids in use, and the event loops of their clients. The loops may run in several threads."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Remove all ids.

        This is also called in a forked child, because the child has no clients yet, and a thread that held the lock does not run
        there.
        """
        self.lock = Lock()
        self.loops: dict[Hashable, asyncio.AbstractEventLoop] = {}


_taken = _Taken()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_taken.reset)


def take(ip: str, instance_name: str, unit_name: str | None) -> str:
    """Return an id that no other client of this process has. It is reserved until ``give_back``, or until the loop is closed."""
    loop = asyncio.get_running_loop()
    with _taken.lock:
        loops = _taken.loops = {each: its for each, its in _taken.loops.items() if not its.is_closed()}
        client_id = next(each for each in _ids(ip, instance_name, unit_name) if _key(each) not in loops)
        loops[_key(client_id)] = loop
    return client_id


def give_back(client_id: str) -> None:
    """Release an id. Do nothing if the id was taken on another event loop."""
    with _taken.lock:
        key = _key(client_id)
        if _taken.loops.get(key) is asyncio.get_running_loop():
            del _taken.loops[key]


def _key(client_id: str) -> Hashable:
    """Return the key under which an id of this process is stored. It contains the process id, because a simulation runs several
    machines in one process.
    """
    return machine.process_id, machine.process_id(), client_id


def _ids(ip: str, instance_name: str, unit_name: str | None) -> Iterator[str]:
    yield build_client_id(ip, instance_name, unit_name)
    for number in count(2):
        yield build_client_id(ip, f"{instance_name}#{number}", unit_name)
