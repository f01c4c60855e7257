"""What a peer may answer: ``answer(link, request)``, which combine: ``late(0.1, refuse(1))``, ``each(refuse(2), stored)``.

``request`` is the command, or what a ``Broker`` makes of a send, a ``Sent``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rmq_protocol.message import MessageQueue

if TYPE_CHECKING:
    from .peer import Link

Answer = Callable[["Link", Any], None]


def silence(_link: Link, _request: Any) -> None:
    """Never answers."""


def echo(link: Link, request: Any) -> None:
    """Success, with the request's body."""
    link.reply(request, body=request.body)


def refuse(code: int, remark: str | None = "no") -> Answer:
    return lambda link, request: link.reply(request, code, remark)


def raw(data: bytes) -> Answer:
    return lambda link, _: link.write(data)


def cut(link: Link, _request: Any) -> None:
    """Ends the stream in order instead of answering."""
    link.close()


def reset(link: Link, _request: Any) -> None:
    """Breaks the connection instead of answering."""
    link.reset()


# -- answers to sends


def status(code: int) -> Answer:
    """Stored, and answered with this code."""
    return lambda link, sent: link.reply(sent, code, None, link.peer.stored_fields(sent))


stored = status(0)


def fields(**given: str | None) -> Answer:
    """Code 0 with other fields than a broker would give; None leaves a field out."""

    def answer(link: Link, sent: Any) -> None:
        fields = link.peer.stored_fields(sent) | given
        link.reply(sent, 0, None, {name: value for name, value in fields.items() if value is not None})

    return answer


class MostUnderWay:
    """Stores, 2 ms later each. ``most``: by queue, how many requests have been unanswered at once."""

    def __init__(self) -> None:
        self.most: Counter[MessageQueue] = Counter()
        self.now: Counter[MessageQueue] = Counter()

    def __call__(self, link: Link, sent: Any) -> None:
        self.now[sent.queue] += 1
        self.most[sent.queue] = max(self.most[sent.queue], self.now[sent.queue])
        asyncio.get_running_loop().call_later(0.002, self.answer, link, sent)

    def answer(self, link: Link, sent: Any) -> None:
        self.now[sent.queue] -= 1
        stored(link, sent)


# -- answers made of others


def late(seconds: float, then: Answer = stored) -> Answer:
    def answer(link: Link, request: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, then, link, request)

    return answer


def twice(first: Answer = stored, second: Answer = stored) -> Answer:
    def answer(link: Link, request: Any) -> None:
        first(link, request)
        second(link, request)

    return answer


def each(*answers: Answer) -> Answer:
    """The first request gets the first answer, and so on; the last one goes to all that follow."""
    left = list(answers)

    def answer(link: Link, request: Any) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(link, request)

    return answer


class AfterNext:
    """The first request is answered as soon as a second one is there; that one and all that follow get no answer."""

    def __init__(self, then: Answer = stored) -> None:
        self._then = then
        self._first: list[tuple[Link, Any]] = []
        self._requests = 0

    def __call__(self, link: Link, request: Any) -> None:
        self._requests += 1
        if self._requests == 1:
            self._first.append((link, request))
        elif self._first:
            self._then(*self._first.pop())
