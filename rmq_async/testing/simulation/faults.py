"""The faults of a run: their kinds, rates and times.

Each kind draws from its own generator.

A fault begins, lasts for a drawn time and ends by itself. It was "met" if it had an effect that the simulation can detect. For
example, a cut of a link was met if it held back bytes, and was not met if no bytes were sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Final, NamedTuple, Self

from .errors import SimulationError
from .scheduler import Scheduler, nanoseconds


def exponential(chance: Random, mean: float) -> float:
    """Draw from an exponential distribution, after von Neumann.

    The method needs only comparisons, one addition and one multiplication, whose results are the same on every platform.
    ``Random.expovariate`` takes a logarithm, whose last bit depends on the C library.
    """
    whole = 0
    while True:
        first = last = chance.random()
        odd = True
        while (number := chance.random()) < last:  # a falling run has odd length with probability exp(-first)
            last = number
            odd = not odd
        if odd:
            return mean * (whole + first)
        whole += 1


KINDS: Final = (
    "broker-busy", "broker-crash", "broker-delay", "broker-disorder", "broker-error", "broker-expire", "broker-jitter",
    "broker-move", "broker-overload", "broker-pause", "broker-power-loss", "broker-resize", "broker-slices", "broker-slow-disk",
    "broker-truncate", "client-move", "client-pause", "client-slow", "clock-drift", "clock-jump", "clock-rate", "link-cut",
    "link-early-close", "link-half-cut", "link-hang", "link-reset", "link-slow", "name-server-crash", "name-server-disagree",
    "name-server-empty", "name-server-forget", "name-server-move", "name-server-pause", "name-server-redirect",
    "name-server-silent",
)  # fmt: skip
"""Names of the kinds of faults."""
POP_KINDS: Final = (
    "pop-empty", "pop-late-revival", "pop-lost-acks", "pop-lost-answers", "pop-refused", "pop-repeated-revival",
)  # fmt: skip
"""Names of the kinds that affect only consumers that pop. ``Faults`` includes these kinds only if they are named."""
LASTING: Final = ("group-no-threads", "group-refused")
"""Names of the kinds that every seed draws if they are named, and whose faults last long."""
GROUP_KINDS: Final = ("broker-fail-over", *LASTING)
"""Names of the kinds that mainly affect consumer groups. ``Faults`` includes these kinds only if they are named. Every seed
draws the kinds whose names begin with ``group``, and their faults last long."""
MEAN_DURATION: Final = 2.0
"""Mean duration of a short fault in seconds."""
LONG_DURATION: Final = 40.0
"""Mean duration of a long fault in seconds."""
LONGEST_DURATION: Final = 90.0
"""Maximum duration of a fault in seconds, so that a service that is paused at the end of a scenario still has time to end."""
LONG_SHARE: Final = 0.1
FEWEST: Final = 3
"""Minimum number of kinds of faults that a seed draws."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a run.

    Attributes:
        kinds: Names from ``KINDS``, ``POP_KINDS`` and ``GROUP_KINDS``.
        rate: Average number of faults of all kinds per virtual minute.
        start: Simulation time in seconds before which no fault begins.
        end: Simulation time in seconds after which no fault begins.
        drawn: Whether each seed draws a subset of the kinds and a rate. The subset has at least three kinds, or all kinds if
            there are fewer, in addition to the kinds whose names begin with ``group``. The rate is 0.5 to 1.5 times the given
            rate.

    Raises:
        SimulationError: If ``kinds`` is a str or contains an unknown kind, if the rate is not a finite number of at least 0, or
            unless ``start`` and ``end`` are numbers with 0 <= start <= end.
        TypeError: If ``kinds`` is not iterable.
    """

    kinds: frozenset[str] = frozenset(KINDS)
    rate: float = 4.0
    start: float = 0.0
    end: float = inf
    drawn: bool = False

    def __post_init__(self) -> None:
        given: object = self.kinds
        if isinstance(given, str):
            raise SimulationError(f"kinds of faults must be a set of names, not {given!r}; give {{{given!r}}}")
        object.__setattr__(self, "kinds", frozenset(self.kinds))
        known = (*KINDS, *POP_KINDS, *GROUP_KINDS)
        if unknown := sorted(self.kinds.difference(known)):
            raise SimulationError(f"there is no kind of fault {unknown[0]!r}; there are {', '.join(known)}")
        numbers: tuple[object, ...] = (self.rate, self.start, self.end)
        if (
            any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers)
            or not 0 <= self.rate < inf
            or not 0 <= self.start <= self.end
        ):
            raise SimulationError(
                "faults need a finite, non-negative rate and 0 <= start <= end, not "
                f"rate={self.rate!r}, start={self.start!r}, end={self.end!r}"
            )

    @classmethod
    def swarm(cls, *, rate: float = 4.0, start: float = 0.0, end: float = inf) -> Self:
        """Return faults of all ``KINDS``. Each seed draws a subset of the kinds and a rate (swarm testing)."""
        return cls(rate=rate, start=start, end=end, drawn=True)

    @classmethod
    def none(cls) -> Self:
        """Return no faults."""
        return cls(frozenset(), 0.0)

    def draw(self, chance: Random) -> Faults:
        """Return the faults that one seed draws from these faults. Return the same faults if they are not ``drawn``."""
        if not self.drawn:
            return self
        names = sorted(self.kinds.difference(LASTING)) or sorted(self.kinds)
        kinds = [kind for kind in names if chance.random() < 0.5]
        if len(kinds) < FEWEST:
            kinds = chance.sample(names, min(FEWEST, len(names)))
        kinds += self.kinds.intersection(LASTING)
        return replace(self, kinds=frozenset(kinds), rate=self.rate * (0.5 + chance.random()), drawn=False)

    def without(self, kind: str) -> Faults:
        """Return the same faults without one kind. The rate of each remaining kind is unchanged."""
        left = self.kinds - {kind}
        return replace(self, kinds=left, rate=self.rate * len(left) / max(1, len(self.kinds)))


class Effect(NamedTuple):
    """A fault that has begun.

    Attributes:
        end: A function that ends the fault.
        met: A function that returns whether the fault had an effect. It is called after ``end``.
    """

    end: Callable[[], object]
    met: Callable[[], bool]


Begin = Callable[[Random, float], Effect | None]
"""A function that begins a fault of the given duration in seconds and returns the fault. It returns None if there is no target,
for example because no broker is running. It draws from the given generator."""


class Injector:
    """Begins and ends the faults of one run.

    Args:
        generator: A function that returns the random generator for a name.

    Attributes:
        begun: Number of faults that have begun, by kind.
        met: Number of faults that had an effect, by kind.
    """

    def __init__(
        self, scheduler: Scheduler, faults: Faults, begin: dict[str, Begin], generator: Callable[[str], Random]
    ) -> None:
        self.begun: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self._scheduler = scheduler
        self._faults = faults
        self._begin = begin
        self._generators = {kind: generator(f"fault {kind}") for kind in sorted(faults.kinds)}
        self._under_way: dict[int, tuple[str, Effect, float]] = {}
        self._spans: list[tuple[float, float]] = []
        self._number = 0
        self._closed = False
        self._resting = False

    def start(self) -> None:
        if self._faults.rate:
            for kind in self._generators:
                self._next(kind, self._faults.start)

    def close(self) -> None:
        """End all current faults, and begin no new ones."""
        self._closed = True
        self._end_all()

    def rest(self) -> None:
        """End all current faults, and begin no new ones until ``go_on`` is called."""
        self._resting = True
        self._end_all()

    def go_on(self) -> None:
        self._resting = False

    def spans(self) -> list[tuple[float, float]]:
        """Return the times between which each fault was active, in seconds of the simulation."""
        return [*self._spans, *((began, self._scheduler.now / 1e9) for _, _, began in self._under_way.values())]

    def unmet(self) -> Iterable[str]:
        """Return the kinds of faults of the run that never had an effect."""
        return [kind for kind in self._generators if not self.met[kind]]

    def _next(self, kind: str, earliest: float) -> None:
        mean = 60.0 * len(self._generators) / self._faults.rate
        at = max(earliest, self._scheduler.now / 1e9) + exponential(self._generators[kind], mean)
        if at <= self._faults.end:
            self._scheduler.after(nanoseconds(at) - self._scheduler.now, self._strike, kind)

    def _strike(self, kind: str) -> None:
        if self._closed:
            return
        chance = self._generators[kind]
        is_long = chance.random() < LONG_SHARE or kind in LASTING
        mean = LONG_DURATION if is_long else MEAN_DURATION
        duration = min(LONGEST_DURATION, exponential(chance, mean))
        effect = None if self._resting else self._begin[kind](chance, duration)
        if effect is not None:
            self.begun[kind] += 1
            self._number += 1
            self._under_way[self._number] = (kind, effect, self._scheduler.now / 1e9)
            self._scheduler.after(nanoseconds(duration), self._end, self._number)
        self._next(kind, 0.0)

    def _end(self, number: int) -> None:
        found = self._under_way.pop(number, None)
        if found is not None:
            kind, effect, began = found
            self._spans.append((began, self._scheduler.now / 1e9))
            effect.end()
            self.met[kind] += effect.met()

    def _end_all(self) -> None:
        for number in list(self._under_way):
            self._end(number)
