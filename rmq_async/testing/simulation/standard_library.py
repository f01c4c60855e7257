"""Replaces clocks and random sources of the standard library, and refuses some of its functions, while a simulation runs.

Modules that have bound such a function or class under their own name (``from time import monotonic``) also get the replacement,
except modules of the standard library and of test tools. After the run, the originals are restored.
"""

from __future__ import annotations

import datetime
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from types import ModuleType, TracebackType
from typing import Any, Final, Protocol, Self

from .errors import SimulationError

_LEFT_ALONE: Final = frozenset({"_pytest", "pytest", "pluggy", "xdist", "execnet", "hypothesis", "coverage", "pytest_timeout"})
_NANO: Final = 1_000_000_000
_STREAMS: Final = "use the streams of asyncio"
_MACHINES: Final = "there is one process of the system; run code on a machine() instead"

Names = Iterable[tuple[ModuleType, str, Any]]
"""Triples of a module, a name in the module, and a value for the name."""


class Clocks(Protocol):
    """The clocks and random sources of the process whose code is running."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that is never set."""

    def time(self) -> float:
        """Return the seconds since the epoch."""

    @property
    def random(self) -> Random:
        """The generator behind the functions of ``random``."""

    @property
    def entropy(self) -> Random:
        """The generator behind ``os.urandom``, ``secrets`` and ``uuid.uuid4``."""


class StandardLibrary:
    """A context in which the standard library returns the time of ``clocks`` and draws from their generators.

    Inside the context, ``Thread.start``, ``socket.socket``, ``subprocess.Popen`` and ``os.fork`` raise SimulationError.
    ``time.sleep`` also raises it, unless ``sleep`` replaces it.
    """

    def __init__(self, clocks: Clocks, sleep: Callable[[float], None] | None = None) -> None:
        date, moment = _datetime_classes(clocks)
        self._replaced = {
            **_clock_functions(clocks),
            **_random_functions(clocks),
            (datetime, "date"): date,
            (datetime, "datetime"): moment,
            (time, "sleep"): sleep or _refusal("time.sleep", "it blocks the process; await asyncio.sleep"),
            (threading.Thread, "start"): _refusal("Thread.start", "there is one thread; use tasks, or asyncio.to_thread"),
            (socket.socket, "__init__"): _refusal("socket.socket", f"sockets of the system are not simulated; {_STREAMS}"),
            (subprocess.Popen, "__init__"): _refusal("subprocess.Popen", _MACHINES),
            (os, "fork"): _refusal("os.fork", _MACHINES),
        }
        self._before: list[tuple[Any, str, Any]] = []
        self._originals: dict[int, Any] = {}
        self._loaded: set[str] = set()
        self._zone: str | None = None

    def __enter__(self) -> Self:
        functions = {place: new for place, new in self._replaced.items() if isinstance(place[0], ModuleType)}
        self._originals = {id(new): getattr(*place) for place, new in functions.items()}
        self._loaded = set(sys.modules)
        bound = list(all_bound_names({id(getattr(*place)): new for place, new in functions.items()}))
        for (owner, name), new in self._replaced.items():
            self._set(owner, name, new)
        for module, name, new in bound:
            self._set(module, name, new)
        self._zone = os.environ.get("TZ")
        _set_zone("UTC")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        while self._before:
            owner, name, old = self._before.pop()
            setattr(owner, name, old)
        # A module that was loaded inside the context has bound the replacements, which end with this simulation.
        later = replaceable_modules(sys.modules.keys() - self._loaded)
        for module, name, old in list(bound_names(later, self._originals)):
            setattr(module, name, old)
        _set_zone(self._zone)

    def _set(self, owner: Any, name: str, new: Any) -> None:
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, new)


def all_bound_names(by_id: Mapping[int, Any]) -> Names:
    """Return ``bound_names`` of all replaceable modules."""
    return bound_names(replaceable_modules(sys.modules), by_id)


def bound_names(modules: Iterable[ModuleType], by_id: Mapping[int, Any]) -> Names:
    """Yield each name in the modules that is bound to an object in ``by_id``, with the value of that object in ``by_id``."""
    for module in modules:
        values = vars(module)
        if not by_id.keys().isdisjoint(map(id, values.values())):  # few modules have any; avoids a Python step per name
            for name, value in values.items():
                if id(value) in by_id:
                    yield module, name, by_id[id(value)]


def replaceable_modules(names: Iterable[str]) -> Iterator[ModuleType]:
    """Yield the modules with these names, except modules of the standard library and of test tools."""
    for full_name in list(names):
        module, package = sys.modules.get(full_name), full_name.partition(".")[0]
        if isinstance(module, ModuleType) and package not in sys.stdlib_module_names and package not in _LEFT_ALONE:
            yield module


def _clock_functions(clocks: Clocks) -> dict[tuple[Any, str], Callable[..., Any]]:
    def monotonic_ns() -> int:
        return round(clocks.monotonic() * _NANO)

    def time_ns() -> int:
        return round(clocks.time() * _NANO)

    def at(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda seconds=None: function(clocks.time() if seconds is None else seconds)

    strftime = time.strftime
    functions: dict[str, Callable[..., Any]] = {
        "monotonic": clocks.monotonic, "monotonic_ns": monotonic_ns, "perf_counter": clocks.monotonic,
        "perf_counter_ns": monotonic_ns, "time": clocks.time, "time_ns": time_ns, "localtime": at(time.localtime),
        "gmtime": at(time.gmtime), "ctime": at(time.ctime),
        "strftime": lambda text, moment=None: strftime(text, time.localtime() if moment is None else moment),
    }  # fmt: skip
    return {(time, name): function for name, function in functions.items()}


def _random_functions(clocks: Clocks) -> dict[tuple[Any, str], Callable[..., Any]]:
    def drawing(name: str) -> Callable[..., Any]:
        return lambda *args, **options: getattr(clocks.random, name)(*args, **options)

    def urandom(size: int) -> bytes:
        return clocks.entropy.randbytes(size)

    seed = Random.seed

    def seeded(self: Random, a: Any = None, version: int = 2) -> None:
        """Seed a generator. If the seed is None, use a number from ``clocks.entropy``."""
        seed(self, clocks.entropy.getrandbits(128) if a is None else a, version)

    names = [name for name in random.__all__ if hasattr(random, name) and not isinstance(getattr(random, name), type)]
    return {
        **{(random, name): drawing(name) for name in names},
        (random, "_urandom"): urandom,
        (os, "urandom"): urandom,
        (Random, "seed"): seeded,
    }


class _Standing(type):
    """The metaclass of a class that replaces another class. Objects and subclasses of the replaced class count as objects and
    subclasses of the replacement.
    """

    stands_for: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.stands_for)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.stands_for)


def _datetime_classes(clocks: Clocks) -> tuple[type, type]:
    """Return the replacements of ``datetime.date`` and ``datetime.datetime``.

    The replacements take the current time from the process, and create objects of the replaced classes.
    """
    real_date: Any = datetime.date
    real: Any = datetime.datetime

    class VirtualDate(real_date, metaclass=_Standing):  # type: ignore[misc]
        stands_for = real_date

        def __new__(cls, *args: Any, **options: Any) -> Any:
            return real_date(*args, **options)

        @classmethod
        def today(cls) -> Any:
            return real.fromtimestamp(clocks.time()).date()

    class VirtualDatetime(real, metaclass=_Standing):  # type: ignore[misc]
        stands_for = real

        def __new__(cls, *args: Any, **options: Any) -> Any:
            return real(*args, **options)

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real.fromtimestamp(clocks.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return real.fromtimestamp(clocks.time(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return real.fromtimestamp(clocks.time())

    for virtual in (VirtualDate, VirtualDatetime):
        virtual.__name__ = virtual.__qualname__ = virtual.stands_for.__name__
        virtual.__doc__ = virtual.stands_for.__doc__
    return VirtualDate, VirtualDatetime


def _refusal(name: str, reason: str) -> Callable[..., Any]:
    def refuse(*args: Any, **options: Any) -> Any:
        raise SimulationError(f"{name}() was called in a simulation: {reason}")

    return refuse


def _set_zone(name: str | None) -> None:
    if name is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = name
    if hasattr(time, "tzset"):
        time.tzset()
