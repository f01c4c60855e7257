"""Hooks of users in a producer, and what they are given.

A hook is asked only where it defines the method, so one that watches sends costs requests nothing. Hooks run on the loop, in the
order given, and must not block. What ``check_forbidden`` raises ends the call; anything else that a hook raises goes to the loop's
exception handler, and no message is the worse for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.errors import shown
from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.trace import MessageType

from ..errors import ConfigError
from ..results import BatchSendResult, SendResult

__all__ = ["Hook", "SendContext", "checked_hooks", "defining", "request_hooks"]

METHODS: Final = ("before_send", "after_send", "check_forbidden", "before_request", "after_request")


class SendContext:
    """One attempt of a send, the same object before and after it.

    ``message``: what the caller gave, a tuple for a batch. ``attempt``: 1 for the first of a call. ``elapsed``: seconds of this
    attempt, connecting included; 0.0 before it. ``result`` and ``error``: None before; then one of them is set, except for a
    one-way send that was queued. ``mode``: "sync", "async" or "oneway". ``msg_ids``: the unique ids, one per message;
    ``msg_id``: the first of them. ``queue``: where this attempt goes; ``broker`` its broker's name, ``address`` that broker's
    "host:port". ``group``: the producer group. ``message_type``: a ``rmq_protocol.trace.MessageType``, of a batch that of its first
    message. ``namespace``: of the client's settings, "" for none. ``born_host``: the address that the client says it has;
    ``name_servers``: of its settings, as "host:port"; ``unit_mode``: whether it is one of several units.
    ``properties``: what ``before_send`` puts in here travels with this attempt beside the message's own properties. ``state``:
    free for hooks, to carry something from before to after.
    """

    __slots__ = (
        "address", "attempt", "born_host", "broker", "elapsed", "error", "group", "message", "message_type", "mode", "msg_ids",
        "name_servers", "namespace", "properties", "queue", "result", "state", "unit_mode",
    )  # fmt: skip

    def __init__(
        self,
        *,
        message: Message | tuple[Message, ...],
        msg_ids: tuple[str, ...],
        queue: MessageQueue,
        address: str,
        attempt: int,
        message_type: MessageType,
        group: str,
        mode: str,
        broker: str = "",
        namespace: str = "",
        born_host: str = "",
        name_servers: tuple[str, ...] = (),
        unit_mode: bool = False,
    ) -> None:
        self.message = message
        self.msg_ids = msg_ids
        self.queue = queue
        self.broker = broker or queue.broker_name
        self.address = address
        self.attempt = attempt
        self.elapsed = 0.0
        self.result: SendResult | BatchSendResult | None = None
        self.error: BaseException | None = None
        self.message_type = message_type
        self.group = group
        self.mode = mode
        self.namespace = namespace
        self.born_host = born_host
        self.name_servers = name_servers
        self.unit_mode = unit_mode
        self.properties: dict[str, str] = {}
        self.state: dict[object, Any] = {}

    @property
    def msg_id(self) -> str:
        return self.msg_ids[0]

    def __repr__(self) -> str:
        told = f", {self.error!r}" if self.error is not None else ""
        return f"<SendContext {self.msg_id} to {self.queue}, attempt {self.attempt}{told}>"


class Hook:
    """Subclass it and define what is needed; all methods are plain functions called on the loop, which they must not block.

    What they raise goes to the loop's exception handler and changes nothing for the message; only ``check_forbidden`` ends calls.

    The two of requests see every request of the client instance that the producer shares with others, heartbeats and route
    look-ups included.
    """

    def before_send(self, context: SendContext) -> None:
        """Called before each attempt (``SendMessageHook.sendMessageBefore``).

        What it puts into ``context.properties`` travels with this attempt, beside the message's own properties.
        """

    def after_send(self, context: SendContext) -> None:
        """Called once after each attempt, whether it was stored, failed or was given up (``sendMessageAfter``)."""

    def check_forbidden(self, context: SendContext) -> None:
        """Called before ``before_send``; raise ForbiddenError to refuse the message and end the call (``CheckForbiddenHook``)."""

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """Called before each request is signed and written (``RPCHook.doBeforeRequest``).

        It may add texts to ``command.ext_fields``; any other change is reported and taken back.
        """

    def after_request(
        self, address: str, command: RemotingCommand, response: RemotingCommand | None, error: BaseException | None
    ) -> None:
        """Called once per request: with its answer, its error, or neither for a one-way request (``doAfterResponse``)."""


def checked_hooks(hooks: object) -> tuple[Any, ...]:
    """Raises ConfigError for something that is no sequence of objects with at least one of a hook's methods, or a coroutine."""
    if isinstance(hooks, Hook) or not isinstance(hooks, Iterable):
        raise ConfigError(f"hooks must be a sequence of Hook objects, not {shown(hooks)}")
    found = tuple(hooks)
    for hook in found:
        methods = [getattr(hook, name) for name in METHODS if callable(getattr(hook, name, None))]
        if not methods or isinstance(hook, type):
            raise ConfigError(f"{shown(hook)} is no Hook object: it has none of {', '.join(METHODS)}")
        for method in methods:
            if inspect.iscoroutinefunction(method):
                raise ConfigError(f"{method.__qualname__} must be a plain function, not a coroutine function")
    return found


def defining(hooks: Iterable[Any], name: str) -> tuple[Any, ...]:
    """The methods of that name of the hooks that define one, beyond the empty one they inherit."""
    methods = [getattr(hook, name, None) for hook in hooks]
    inherited = getattr(Hook, name)
    return tuple(method for method in methods if callable(method) and getattr(method, "__func__", None) is not inherited)


class _RequestHook:
    """The methods of a user's hook that see requests; the same hook in another producer equals it."""

    __slots__ = ("_after", "_before", "_hook")

    def __init__(self, hook: object, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
        self._hook = hook
        self._before = before
        self._after = after

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RequestHook) and other._hook is self._hook

    def __hash__(self) -> int:
        return id(self._hook)

    def __repr__(self) -> str:
        return repr(self._hook)

    def before(self, address: str, command: RemotingCommand, /) -> None:
        for method in self._before:
            method(address, command)

    def after(
        self, address: str, command: RemotingCommand, response: RemotingCommand | None, error: BaseException | None, /
    ) -> None:
        for method in self._after:
            method(address, command, response, error)


def request_hooks(hooks: Iterable[Any]) -> list[_RequestHook]:
    """Those of ``hooks`` that see requests, as the transport takes them."""
    found = [(hook, defining([hook], "before_request"), defining([hook], "after_request")) for hook in hooks]
    return [_RequestHook(hook, before, after) for hook, before, after in found if before or after]
