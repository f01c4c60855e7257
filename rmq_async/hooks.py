"""Hooks of users in producers and group consumers, and the context object of a send.

Only the methods that a hook defines are called. They run on the event loop and must not block. An error of ``check_forbidden`` ends
the call. After an error of any other method, the message is nevertheless sent or handled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from rmq_protocol.command import RemotingCommand
from rmq_protocol.errors import shown
from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.trace import MessageType

from ._functions import check_arguments, is_async, is_generator
from .errors import ConfigError
from .results import BatchSendResult, SendResult

METHODS: Final = {
    "before_send": ("context",),
    "after_send": ("context",),
    "check_forbidden": ("context",),
    "before_request": ("address", "command"),
    "after_request": ("address", "command", "response", "error"),
    "before_consume": ("delivery",),
    "after_consume": ("delivery",),
}
"""The methods of hooks, and their arguments."""


class SendContext(msgspec.Struct, eq=False, kw_only=True):
    """One attempt of a send. ``check_forbidden``, ``before_send`` and ``after_send`` receive the same object.

    Attributes:
        message: The caller's message; a tuple of messages for a batch.
        attempt: Number of the attempt in its call, counted from 1.
        elapsed: Seconds that this attempt took, including connecting; 0.0 before the attempt.
        result: The result of a successful attempt. None before the attempt, after a failed attempt, and for a one-way attempt.
        error: The error of a failed attempt, or None.
        mode: "sync", "async" or "oneway".
        msg_ids: The unique ids, one for each message.
        msg_id: The first unique id.
        queue: The queue of this attempt.
        broker: The name of the queue's broker.
        address: The address "host:port" to which the attempt is sent.
        group: The producer group.
        message_type: The ``rmq_protocol.trace.MessageType``; NORMAL for a batch.
        namespace: The namespace in the client's settings; "" for none.
        born_host: The address of this client.
        name_servers: The name servers in the client's settings, as "host:port".
        unit_mode: The client setting of that name.
        properties: Properties that hooks add for this attempt. They replace properties of the message with the same name.
        state: Values that hooks pass from ``before_send`` to ``after_send``. The library does not use them.
    """

    message: Message | tuple[Message, ...]
    msg_ids: tuple[str, ...]
    queue: MessageQueue
    address: str
    attempt: int
    message_type: MessageType
    group: str
    mode: str
    broker: str = ""
    namespace: str = ""
    born_host: str = ""
    name_servers: tuple[str, ...] = ()
    unit_mode: bool = False
    elapsed: float = 0.0
    result: SendResult | BatchSendResult | None = None
    error: BaseException | None = None
    properties: dict[str, str] = {}
    state: dict[object, Any] = {}

    # This is a Struct because one is made for each attempt, and setting eighteen attributes in Python takes three times as long.
    def __post_init__(self) -> None:
        if not self.broker:
            self.broker = self.queue.broker_name

    @property
    def msg_id(self) -> str:
        return self.msg_ids[0]

    def __repr__(self) -> str:
        error = f", {self.error!r}" if self.error is not None else ""
        return f"<SendContext {self.msg_id} to {self.queue}, attempt {self.attempt}{error}>"


class Hook:
    """Base class of hooks. Subclasses define the methods that they need, as plain functions. The methods run on the event loop and
    must not block.

    One object may be a hook of both producers and group consumers. Each of them calls only its own methods. Errors of the methods
    go to the loop's exception handler, and the message is nevertheless sent or handled; only ``check_forbidden`` can end a call. Of
    the errors of ``before_consume`` and ``after_consume``, only the first, second, fourth, eighth and so on go to the exception
    handler.

    ``before_request`` and ``after_request`` are called for every request of the client instance, which the producer or consumer may
    share with other clients. This includes heartbeats and route requests.
    """

    def before_send(self, context: SendContext) -> None:
        """Run before each attempt (``SendMessageHook.sendMessageBefore``).

        Properties that the hook puts into ``context.properties`` are sent with this attempt, and replace properties of the message
        with the same name. Invalid properties are left out and reported to the loop's exception handler. Properties that do not fit
        into a batch are left out and logged.
        """

    def after_send(self, context: SendContext) -> None:
        """Run once after each attempt (``sendMessageAfter``).

        An attempt ends when the broker has stored the message, or when the attempt fails or is abandoned. A one-way attempt ends
        when its frame is queued.
        """

    def check_forbidden(self, context: SendContext) -> None:
        """Run before ``before_send``, for each attempt (``CheckForbiddenHook``).

        The hook raises ForbiddenError to refuse the attempt and end the call. Any other error becomes the ``__cause__`` of a
        ForbiddenError.
        """

    def before_consume(self, delivery: Any) -> None:
        """Run before each handler call, with its ``Delivery`` (``ConsumeMessageHook.consumeMessageBefore``).

        The hook runs in the context (of ``contextvars``) of the handler call, so the handler sees the context variables that the
        hook sets. When an iterator or ``receive()`` is used instead of a handler, the hook runs each time that messages are
        returned, in a copy of the caller's context.
        """

    def after_consume(self, delivery: Any) -> None:
        """Run once for each handler call, with its ``Delivery``, when its messages have their outcomes (``consumeMessageAfter``).

        When an iterator or ``receive()`` is used, the hook runs when all messages that were returned together have their outcomes,
        except messages that went back into the buffer.
        """

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """Run before each request is signed and written (``RPCHook.doBeforeRequest``).

        The hook may change ``command.ext_fields``. Names must be str and values str or None, and all of them must be encodable in
        UTF-8. Otherwise, its changes to ``ext_fields`` are undone, and the loop's exception handler is called. Changes to other
        attributes are always undone.
        """

    def after_request(
        self, address: str, command: RemotingCommand, response: RemotingCommand | None, error: BaseException | None
    ) -> None:
        """Run once for each request for which ``before_request`` has run (``doAfterResponse``).

        Args:
            response: The response; None after an error, and for a one-way request.
            error: The error; None if there is a response, and for a one-way request.
        """


def checked_hooks(hooks: object) -> tuple[Any, ...]:
    """Return ``hooks`` as a tuple.

    Raises:
        ConfigError: If ``hooks`` is not an iterable of objects that have at least one method of a hook, or if it contains a class
            instead of an object, or a method that is a coroutine or generator function.
        TypeError: If a method cannot be called with its arguments.
    """
    if isinstance(hooks, Hook) or not isinstance(hooks, Iterable):
        raise ConfigError(f"hooks must be a sequence of Hook objects, not {shown(hooks)}")
    found = tuple(hooks)
    for hook in found:
        methods = {name: method for name in METHODS if callable(method := getattr(hook, name, None))}
        if not methods:
            raise ConfigError(f"{shown(hook)} is not a Hook object: it must have at least one of {', '.join(METHODS)}")
        if isinstance(hook, type):
            raise ConfigError(f"{shown(hook)} is a class; pass an instance of it as a hook")
        _check_overrides(hook)
        for name, method in methods.items():
            if is_async(method) or is_generator(method):
                kind = "coroutine" if is_async(method) else "generator"
                raise ConfigError(f"{name}() of hook {shown(hook)} must be a plain function, not a {kind} function")
            check_arguments(name, method, *METHODS[name])
    return found


def _check_overrides(hook: object) -> None:
    """Raise ConfigError for an instance of a subclass of Hook that overrides no method. A method name is probably misspelt."""
    if isinstance(hook, Hook) and type(hook) is not Hook and not any(defining([hook], name) for name in METHODS):
        raise ConfigError(f"{shown(hook)} would never be called: its class must define one of {', '.join(METHODS)}")


def defining(hooks: Iterable[Any], name: str) -> tuple[Any, ...]:
    """Return the method ``name`` of each hook that defines it. The empty methods of ``Hook`` are left out."""
    methods = [getattr(hook, name, None) for hook in hooks]
    inherited = getattr(Hook, name)
    return tuple(method for method in methods if callable(method) and getattr(method, "__func__", None) is not inherited)


class RequestHook:
    """Those methods of a user's hook that are called for requests.

    Two objects for the same hook are equal, so that a hook that two clients share is called only once for each request.
    """

    __slots__ = ("_after", "_before", "_hook")

    def __init__(self, hook: object, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
        self._hook = hook
        self._before = before
        self._after = after

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestHook) and other._hook is self._hook

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


def request_hooks(hooks: Iterable[Any]) -> list[RequestHook]:
    """Return a RequestHook, which the transport calls, for each hook that defines ``before_request`` or ``after_request``."""
    found = [(hook, defining([hook], "before_request"), defining([hook], "after_request")) for hook in hooks]
    return [RequestHook(hook, before, after) for hook, before, after in found if before or after]
