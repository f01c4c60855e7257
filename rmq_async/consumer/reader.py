"""Reading by hand: the part of a consumer by which users take messages themselves, without handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from math import inf
from types import TracebackType
from typing import Final

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageExt

from .. import machine
from ..client import LifeState
from ..config import check_int, check_seconds
from ..errors import ClientStateError, ConfigError
from .batch import Batch, Marks
from .by_hand import ByHand
from .control import Control
from .iterators import BatchIterator, MessageIterator
from .outcome import DeadLetter, RetryLater
from .subscription import MAX_BATCH, Subscription, by_hand

__all__ = ["Reader", "subscriptions_of"]

NOTHING: Final = "receive() returned an empty batch, which has no message to mark; test the batch first"


def subscriptions_of(topics: object) -> list[Subscription]:
    """Returns subscriptions without handlers. Raises ConfigError unless ``topics`` is a topic, several different topics, or a
    mapping of topics to tags, and for an invalid topic or tags."""
    if isinstance(topics, str):
        tags_of: Mapping[str, str] = {topics: "*"}
    elif isinstance(topics, Mapping):
        tags_of = topics
    elif isinstance(topics, Iterable) and not isinstance(topics, bytes):
        listed = list(topics)
        if not all(isinstance(topic, str) for topic in listed):
            raise _wrong_topics(topics)
        tags_of = dict.fromkeys(listed, "*")
        if len(tags_of) < len(listed):
            raise ConfigError(f"topics={shown(topics)} has a topic twice; name each once")
    else:
        raise _wrong_topics(topics)
    return [Subscription(topic, by_hand, tags=tags) for topic, tags in tags_of.items()]


def _wrong_topics(topics: object) -> ConfigError:
    return ConfigError(f"topics must be a topic, a list of topics, or a mapping of topics to tags, not {shown(topics)}")


class Reader(Control):
    """The part of a Consumer that hands messages out, one by one or in batches."""

    def __aiter__(self) -> AsyncGenerator[MessageExt, None]:
        """Returns an iterator over the messages of this member's share, for a Consumer with ``topics``.

        Code that starts a task per message inside of ``async for`` loses messages, because asking for the next message settles
        the last one: use a handler for that. Leaving the loop, also by an exception, does not settle the message in hand: it
        goes back into the buffer when the iterator is closed or collected, and is handed out again. A message not settled
        within its subscription's ``timeout`` (900 s) is given back, to be delivered again. Several tasks may iterate at the
        same time, each with an iterator of its own; each message goes to one of them. An iteration ends when the consumer
        stops.

        The first step raises ClientStateError unless the consumer runs, and where it has handlers. Any step raises ForkedError
        in a forked child, WrongLoopError on another event loop, and RuntimeError while another task waits for a step of the
        same iterator.
        """
        return MessageIterator(self._room)

    def batches(self, max_messages: int = 32, *, wait: float = 0.0) -> AsyncGenerator[Batch, None]:
        """Returns an iterator over batches of one topic each. Asking for the next batch settles the messages of the last one,
        except those with marks, which are given back or dead-lettered.

        ``wait``: maximum seconds for which the first message waits until there are ``max_messages`` (1 to 65,536); 0 for the
        messages that are there. Otherwise as ``__aiter__``. Raises ConfigError for a size or a time out of range.
        """
        check_int("max_messages", max_messages, 1, MAX_BATCH)
        check_seconds("wait", wait, zero=True)
        return BatchIterator(self._room, max_messages, wait)

    async def receive(self, max_messages: int = 32, *, timeout: float | None = None) -> Batch:
        """Returns up to ``max_messages`` (1 to 65,536) messages of one topic, as soon as there is one; settles nothing.

        ``timeout``: seconds after which an empty batch is returned; None for no limit. A call that is cancelled
        has taken nothing. Messages stay in hand until ``done``, ``retry`` or ``dead_letter`` settles them, or for their
        subscription's ``timeout``, after which they are delivered again.

        Raises ClientStateError where the consumer stops, also during the call, or does not run, and where it has handlers;
        ForkedError and WrongLoopError as a step of ``__aiter__`` does; ConfigError for a size or a time out of range.
        """
        check_int("max_messages", max_messages, 1, MAX_BATCH)
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        room = self._room()
        hand = await room.ask(max_messages, until=inf if timeout is None else machine.monotonic() + timeout, iterated=False)
        if hand is not None:
            return hand.batch
        if room.closing:
            raise ClientStateError(f"{self._label} stops; start it again to read on")
        return Batch((), Marks(NOTHING))

    def done(self, *messages: MessageExt) -> bool:
        """Settles messages in hand: they are not delivered again, unless this member ends before the next commit.

        Returns False where one of them is not in hand: it was settled or given back already, was in hand for too long, or its
        queue has gone to another member, for example; the others are settled. Returns False after a stop, too.

        Raises TypeError for an object that is no message; ClientStateError before a start, and for a consumer with handlers;
        ForkedError and WrongLoopError as a step of ``__aiter__`` does.
        """
        room = self._room_of(*messages)
        return False if room is None else room.done(messages)

    async def retry(self, message: MessageExt, delay: float | None = None) -> bool:
        """Gives a message in hand back, to be delivered again after ``delay`` seconds, as RetryLater says. It uses up an attempt.

        ``delay``: None for the delay of the attempt. Returns True when a broker has taken it, or this member will hand it out
        again itself because none does. Returns False as ``done`` does, and when no broker has taken it within 3 s: it goes on
        waiting for one, as long as the queue is this member's. A call that is cancelled gives the message
        back all the same. Raises ConfigError for a delay out of range, and as ``done`` does.
        """
        if delay is not None:
            check_seconds("delay", delay, zero=True)
        room = self._room_of(message)
        return False if room is None else await room.give_back(message, RetryLater(delay))

    async def dead_letter(self, message: MessageExt, reason: str = "") -> bool:
        """Puts a message in hand into the group's dead-letter topic. ``reason``: for the log. Otherwise as ``retry``."""
        room = self._room_of(message)
        return False if room is None else await room.give_back(message, DeadLetter(reason))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None and self._session.by_hand is not None:
            self._session.by_hand.let_go(asyncio.current_task())  # the block is over: nothing settles what it had in hand
        await super().__aexit__(kind, error, trace)

    def _room(self) -> ByHand:
        """Returns the ByHand of the session. Raises ClientStateError unless running, and for a consumer with handlers;
        ForkedError in a forked child; WrongLoopError on another event loop."""
        room = self._running_session().by_hand
        if room is None:
            raise ClientStateError(f"{self._label} has handlers; make a Consumer with topics= to read by hand")
        room.check()
        return room

    def _room_of(self, *messages: MessageExt) -> ByHand | None:
        """Returns the ByHand of the session; None after a stop, when no message is in hand. Raises TypeError for an object that
        is no message, and as ``_room``."""
        for message in messages:
            if not isinstance(message, MessageExt):
                raise TypeError(
                    f"expected a MessageExt, not {type(message).__name__}; pass single messages, those of a batch as done(*batch)"
                )
        return None if self._session is None and self._state is LifeState.STOPPED else self._room()
