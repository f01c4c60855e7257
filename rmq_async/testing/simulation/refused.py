"""The methods of an event loop that would leave a simulation: each raises SimulationError and names itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .errors import SimulationError

_REASONS: Final = {
    "sockets and files of the system are not simulated; use the streams of asyncio": (
        "add_reader remove_reader add_writer remove_writer sock_recv sock_recv_into sock_recvfrom sock_recvfrom_into sock_sendall "
        "sock_sendto sock_connect sock_accept sock_sendfile connect_accepted_socket create_datagram_endpoint sendfile "
        "create_unix_connection create_unix_server connect_read_pipe connect_write_pipe getnameinfo"
    ),
    "TLS is not simulated; use plain connections": "start_tls",
    "a simulation has one process of the system; run code on a machine() instead": "subprocess_shell subprocess_exec",
    "signals of the system are not simulated; use crash() or pause() of the machine": (
        "add_signal_handler remove_signal_handler"
    ),
    "a simulation has one thread, and runs the jobs of all executors on its loop; leave this out": "set_default_executor",
    "Simulation.run() runs the loops of a simulation; await the coroutine instead": "run_forever run_until_complete",
    "Simulation.run() ends the loops of a simulation; return from the function that it runs": "stop",
}


def _refusal(name: str, reason: str) -> Callable[..., Any]:
    def refuse(self: object, *args: Any, **options: Any) -> Any:
        raise SimulationError(f"{name}(): {reason}")

    refuse.__name__ = name
    refuse.__doc__ = f"Raises SimulationError: {reason}."
    return refuse


class Refused:
    """Base class with the methods that a simulated loop refuses; it precedes ``asyncio.AbstractEventLoop`` among the bases."""


for _reason, _names in _REASONS.items():
    for _name in _names.split():
        setattr(Refused, _name, _refusal(_name, _reason))
