"""Fault switches of the embedded servers. A test uses them to cause faults that a client must survive, in requests of any kind.

A ``FailureScript`` lists the next requests that get an error code instead of being served, or that are served without a response.
All servers of an ``EmbeddedRocketMQ`` share one script, so "the next three sends fail" applies to all brokers together. A
``Gate`` stands between one server and its sockets. It holds responses back for a time (``delay``) or until the test resumes the
server (``stalled``). Like a stopped process, a stalled server also reads nothing, so its peers see full buffers and not only
missing responses. The gate also determines the order in which requests are served (``chance``) and the slices in which responses
are sent (``slices``). ``PopFaults`` has the faults of pops, and ``SendQueue`` limits the rate of sends.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple, TypeVar, get_args

from rmq_protocol.constants import RequestCode
from rmq_protocol.errors import shown

from .arguments import check_count, check_delay, check_number, check_one_of, check_span
from .clock import PendingCall

PopStore = Literal["log", "kv"]

LOG_DELAY: Final = 2.0
"""Seconds from the end of an invisible time to the redelivery, with check points in the revive log. It is the minimum of a real
broker."""
KV_DELAY: Final = 0.5
"""Seconds from the end of an invisible time to the redelivery, with the key-value store (``PopConsumerService``)."""
NO_POPS: Final = "4.9.7"
"""The version of ``EmbeddedRocketMQ`` whose brokers do not support pops."""


class PopSettings(NamedTuple):
    """The settings of pops.

    Attributes:
        store: "log" or "kv". "kv" stores check points as a broker with ``popConsumerKVServiceEnable`` does.
        retry_v2: Whether retry topics have the newer form of names (``enableRetryTopicV2``).
        revive_delay: Seconds from the end of an invisible time to the redelivery. None means ``LOG_DELAY`` or ``KV_DELAY``,
            depending on the store.
    """

    store: PopStore = "log"
    retry_v2: bool = False
    revive_delay: float | None = None

    @property
    def delay_ms(self) -> int:
        """Milliseconds from the end of an invisible time to the redelivery."""
        usual = KV_DELAY if self.store == "kv" else LOG_DELAY
        return round(1000 * (usual if self.revive_delay is None else self.revive_delay))


def checked_settings(store: PopStore, revive_delay: float | None, *, retry_v2: bool) -> PopSettings:
    """Check the settings and return them.

    Raises:
        TypeError: For a delay that is not a number.
        ValueError: For an unknown store and for a delay out of range.
    """
    check_one_of("pop_store", store, get_args(PopStore))
    if revive_delay is not None:
        check_delay("pop_revive_delay", revive_delay)
    return PopSettings(store, retry_v2, revive_delay)


class PopFaults:
    """The faults of the next pops.

    Attributes:
        empty: Number of pops that get no messages even if there are messages.
        lost_acks: Number of acknowledging requests that get a response but have no effect.
        late_ms: Additional delay, in ms, before messages are delivered again.
        copies: Number of copies of each message that is delivered again.
    """

    def __init__(self) -> None:
        self.empty = 0
        self.lost_acks = 0
        self.late_ms = 0
        self.copies = 1

    def take_empty(self) -> bool:
        """Return whether this pop gets no messages, and use up one empty pop if so."""
        taken = self.empty > 0
        self.empty -= taken
        return taken

    def take_lost_ack(self) -> bool:
        """Return whether this acknowledging request has no effect, and use up one lost ack if so."""
        taken = self.lost_acks > 0
        self.lost_acks -= taken
        return taken


T = TypeVar("T")

_NEVER_BY_DEFAULT = frozenset({int(RequestCode.HEART_BEAT), int(RequestCode.UNREGISTER_CLIENT)})


class Failure:
    """One entry of a script: the next ``left`` requests get a response with ``code``.

    Args:
        request: RequestCode of the requests that fail. None means the requests that ``FailureScript.add`` describes.
    """

    def __init__(self, code: int, left: int, request: int | None) -> None:
        self.code = code
        self.left = left
        self.request = request


class FailureScript:
    """The failures of future requests and the losses of responses. Failures are used up in the order in which they were added."""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self._lost: Counter[int] = Counter()

    @property
    def pending(self) -> bool:
        return bool(self._failures or self._lost)

    def add(self, code: int, n: int, request: int | None) -> Failure:
        """Add a failure of the next ``n`` requests. Return the failure.

        ``n`` = 0 adds no failure, and cancels the earlier failures with the same ``request``.

        Args:
            code: The ResponseCode of the responses.
            request: A RequestCode, or None for any request to a broker except heartbeats and unregistrations.

        Raises:
            TypeError: For an argument that is not a whole number (``request`` may be None).
            ValueError: For a negative ``n``.
        """
        check_count(n)
        check_code("code", code, "ResponseCode.SYSTEM_BUSY")
        if request is not None:
            check_code("request", request, "RequestCode.PULL_MESSAGE")
        failure = Failure(int(code), n, None if request is None else int(request))
        if n == 0:
            self._failures = [each for each in self._failures if each.request != request]
        else:
            self._failures.append(failure)
        return failure

    def lose(self, n: int, request: int) -> int:
        """Serve ``n`` more requests of this RequestCode without sending their responses. 0 cancels all losses for this
        RequestCode.

        Returns:
            The number of losses that remained from earlier calls.

        Raises:
            TypeError: For an argument that is not a whole number.
            ValueError: For a negative ``n``.
        """
        check_count(n)
        check_code("request", request, "RequestCode.PULL_MESSAGE")
        left = self._lost.pop(int(request), 0)
        if n:
            self._lost[int(request)] = left + n
        return left

    def takes_answer(self, request: int) -> bool:
        """Return whether the response to a request of this RequestCode is lost, and use up one loss if so."""
        if not self._lost[request]:
            return False
        self._lost[request] -= 1
        if not self._lost[request]:
            del self._lost[request]
        return True

    def take_back(self, failure: Failure) -> None:
        """Remove the remainder of one failure."""
        if failure in self._failures:
            self._failures.remove(failure)

    def take(self, request: int, *, named_only: bool) -> int | None:
        """Use up one failure of a request with RequestCode ``request``. Return the code of the response. Return None if the
        request is to be served.

        Args:
            named_only: If True, only failures that were added with this RequestCode apply.
        """
        for failure in self._failures:
            if failure.request == request or (failure.request is None and not named_only and request not in _NEVER_BY_DEFAULT):
                failure.left -= 1
                if not failure.left:
                    self._failures.remove(failure)
                return failure.code
        return None


Write = Callable[[Sequence[bytes]], None]


class Gate:
    """Holds back the responses of one server.

    Held responses keep their order, except responses with a random delay or with additional seconds of their own (``hold``).
    Responses that are created after the end of a delay may overtake held responses.

    Attributes:
        open: Whether new responses bypass the gate. The server checks this attribute before it sends.
        apart: True to hold each response separately. False to hold the responses of one read together.
        chance: The random source that selects the requests to serve next. None to serve requests in the order of arrival.
        turn: The number of selections so far. The requests of one selection were in flight together.
        slices: The random source of the slices in which responses are sent. None to send responses whole.
    """

    def __init__(self) -> None:
        self.open = True
        self.stalled = False
        self.chance: random.Random | None = None
        self.turn = 0
        self.slices: random.Random | None = None
        self.apart = False
        self._delay = 0.0
        self._jitter = 0.0
        self._jitters = random.Random(0)
        self._last = 0.0
        """Event loop time at which the last response that keeps its order is sent."""
        self._count = 0
        self._held: list[tuple[float, int, Write, Sequence[bytes]]] = []
        self._releasing = PendingCall(self._release)

    def set_delay(self, seconds: float, jitter: float = 0.0, chance: random.Random | None = None) -> None:
        """Set the delay in seconds of each later response, and the maximum of the additional delay that ``chance`` draws for
        it.

        Responses that are already waiting keep their time.

        Raises:
            TypeError: For a value that is not a number.
            ValueError: For negative, infinite and NaN seconds.
        """
        for name, value in (("delay", seconds), ("jitter of a delay", jitter)):
            check_span(f"a {name}", value)
        self._delay, self._jitter = seconds, jitter
        if chance is not None:
            self._jitters = chance
        self.apart = bool(jitter)
        self._update()

    def set_stalled(self, stalled: bool) -> None:
        self.stalled = stalled
        self._update()
        if stalled:
            self._releasing.cancel()
        else:
            self._arm()

    def hold(self, write: Write, parts: Sequence[bytes], seconds: float = 0.0) -> None:
        """Call ``write(parts)`` after the delay, its jitter and ``seconds``, but not while the server is stalled."""
        when = asyncio.get_running_loop().time() + self._delay + seconds
        if self._jitter:
            when += self._jitters.random() * self._jitter
        elif not seconds:
            when = self._last = max(when, self._last)
        self._count += 1
        heappush(self._held, (when, self._count, write, parts))
        if self._held[0][1] == self._count:
            self._releasing.cancel()
        self._arm()

    def close(self) -> None:
        """Drop the held responses and reset the switches."""
        self._releasing.cancel()
        self._held.clear()
        self.stalled = False
        self.chance = self.slices = None
        self.set_delay(0.0)
        self._last = 0.0

    def _update(self) -> None:
        self.open = not self.stalled and not self._delay and not self._jitter

    def _arm(self) -> None:
        if self._held and not self.stalled:
            self._releasing.at(self._held[0][0])

    def _release(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._held and self._held[0][0] <= now:
            _, _, write, parts = heappop(self._held)
            write(parts)
        self._arm()


def drawn(waiting: deque[T], chance: random.Random) -> deque[T]:
    """Remove and return some items of ``waiting`` in random order, each with a probability of one half. Shuffle the rest."""
    mixed = list(waiting)
    chance.shuffle(mixed)
    number = sum(chance.random() < 0.5 for _ in mixed)
    waiting.clear()
    waiting.extend(mixed[number:])
    return deque(mixed[:number])


def check_code(name: str, code: object, example: str) -> None:
    if isinstance(code, bool) or not isinstance(code, int):
        raise TypeError(f"{name} must be a whole number, such as {example} (of rmq_protocol.constants), not {shown(code)}")


# The send queue of a stock broker, as far as clients notice it. Sends wait in order, and a send that would wait too long is
# refused with SYSTEM_BUSY (``BrokerFastFailure``).

LONGEST_WAIT: Final = 0.2
"""Seconds in the queue after which a send is refused (``waitTimeMillsInSendQueue``)."""
THROTTLED: Final = frozenset(
    {
        int(RequestCode.SEND_MESSAGE),
        int(RequestCode.SEND_MESSAGE_V2),
        int(RequestCode.SEND_BATCH_MESSAGE),
        int(RequestCode.CONSUMER_SEND_MSG_BACK),
    }
)
"""Request codes that wait in the send queue."""


WARMING: Final = 2.0
"""Sends per second by which each served send raises the rate of a broker that has just started. With this value, a broker that
begins with 1,000 sends per second and ends with 20,000 serves 20,000 sends within about 2 s, as a broker of 5.5.0 on two cores
does after its start."""


class SendQueue:
    """A queue of sends that are served at a rate.

    Args:
        rate: Number of sends that the broker serves per second, one after the other.
        warm: The final rate of a broker that has just started. None means a constant rate.

    Attributes:
        refused: Number of sends that were refused, because they would have waited too long.
    """

    def __init__(self, rate: float, warm: float | None = None) -> None:
        for name, value in (("rate", rate), ("warm", rate if warm is None else warm)):
            check_number(name, value)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a positive, finite number of sends per second, not {value}")
        if warm is not None and warm < rate:
            raise ValueError(f"warm must not be below rate, {rate}, it is {warm}")
        self._rate = rate
        self._warm = rate if warm is None else warm
        self._free = 0.0
        self.refused = 0

    def take(self, now: float) -> float | None:
        """Add a send. Return the seconds until its response, or None if the send is refused."""
        begins = max(self._free, now)
        if begins - now > LONGEST_WAIT:
            self.refused += 1
            return None
        self._free = begins + 1 / self._rate
        self._rate = min(self._rate + WARMING, self._warm)
        return self._free - now

    def refusal(self, now: float) -> str:
        """Return the remark for a refused send, in the wording of a real broker."""
        waiting = int((self._free - now) * self._rate)
        return (
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {int(LONGEST_WAIT * 1000)}ms, size of queue: {waiting}"
        )
