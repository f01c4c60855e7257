"""What every request of a client passes on its way out: the namespace, users' hooks, and last its signature.

A signature covers all extFields and the body, so nothing may be added after it (``AclSigner``). Sends built from templates pass
here only where ``active`` says that there is something to do; a listener tells senders when that changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from rmq_protocol.command import RemotingCommand
from rmq_protocol.signing import SessionCredentials, sign

from .escaping import report
from .pending import Receiver

__all__ = ["PassedRequest", "RequestHook", "RequestHooks", "given_up", "guarded"]


class RequestHook(Protocol):
    """``before``: may add to the command's extFields. ``after``: the answer, the error, or neither for a one-way request.

    Hooks that are equal are one.
    """

    def before(self, address: str, command: RemotingCommand, /) -> None: ...
    def after(
        self, address: str, command: RemotingCommand, response: RemotingCommand | None, error: BaseException | None, /
    ) -> None: ...


class RequestHooks:
    """Of one connection pool. ``namespace``: of the second kind (``NamespaceRpcHook``)."""

    __slots__ = ("_credentials", "_hooks", "_namespace", "_uses", "active", "on_change")

    def __init__(self, credentials: SessionCredentials | None = None, namespace: str | None = None) -> None:
        self._credentials = credentials
        self._namespace = namespace
        self._hooks: tuple[RequestHook, ...] = ()
        self._uses: dict[RequestHook, int] = {}
        """How many have added each: users give one hook to several producers of a client, whose requests it sees once."""
        self.active = credentials is not None or namespace is not None
        """Whether requests have to pass here. A plain attribute: it is read for every request."""
        self.on_change: list[Callable[[], None]] = []

    def add(self, hook: RequestHook) -> None:
        self._uses[hook] = self._uses.get(hook, 0) + 1
        self._change()

    def remove(self, hook: RequestHook) -> None:
        """Undoes one ``add``. Requests under way are told to it still."""
        self._uses[hook] -= 1
        if not self._uses[hook]:
            del self._uses[hook]
        self._change()

    def passed(self, address: str, command: RemotingCommand) -> PassedRequest:
        """The request as it is to be written; the command given stays as it is."""
        ext: dict[str, str | None] = dict(command.ext_fields or {})
        if self._namespace is not None:
            ext["nsd"], ext["ns"] = "true", self._namespace
        command = msgspec.structs.replace(command, ext_fields=ext)
        hooks = self._hooks
        for hook in hooks:
            kept = msgspec.structs.replace(command, ext_fields=dict(command.ext_fields or {}))
            guarded(hook.before, address, command)
            if (fault := _undo(command, kept)) is not None:
                guarded(_refuse, hook, fault)
        if self._credentials is not None:
            command.ext_fields = {**sign(self._credentials, command.ext_fields, (command.body,))}
        return PassedRequest(address, command, hooks)

    def _change(self) -> None:
        self._hooks = tuple(self._uses)
        self.active = bool(self._hooks) or self._credentials is not None or self._namespace is not None
        for changed in list(self.on_change):
            changed()


class PassedRequest(msgspec.Struct):
    """A request that the hooks have seen, until ``tell`` tells the same hooks how it ended: once, whoever calls it first."""

    address: str
    command: RemotingCommand
    hooks: tuple[RequestHook, ...]
    told: bool = False

    def tell(self, response: RemotingCommand | None, error: BaseException | None) -> None:
        if not self.told:
            self.told = True
            for hook in self.hooks:
                guarded(hook.after, self.address, self.command, response, error)

    def watching(self, receiver: Receiver, read: Callable[[Any], RemotingCommand]) -> Receiver:
        """A receiver that tells the hooks of the answer before it passes it on; ``read`` makes a command of it."""
        return _AnsweredRequest(self, receiver, read) if self.hooks else receiver


class _AnsweredRequest:
    """Not ``done`` before the hooks are told, so that they are also where nobody waits for the answer any more."""

    __slots__ = ("_read", "_receiver", "_request")

    def __init__(self, request: PassedRequest, receiver: Receiver, read: Callable[[Any], RemotingCommand]) -> None:
        self._request = request
        self._receiver = receiver
        self._read = read

    def done(self) -> bool:
        return self._request.told and self._receiver.done()

    def set_result(self, result: Any, /) -> None:
        self._request.tell(self._read(result), None)
        if not self._receiver.done():
            self._receiver.set_result(result)

    def set_exception(self, exception: Any, /) -> None:
        self._request.tell(None, exception)
        if not self._receiver.done():
            self._receiver.set_exception(exception)

    def given_up(self) -> None:
        """Nobody waits for the answer any more, and nobody is told but the hooks."""
        self._request.tell(None, asyncio.CancelledError("given up, nobody waits for the answer any more"))


def given_up(receiver: Receiver) -> None:
    """For whoever takes a request out of its table before it is answered."""
    if isinstance(receiver, _AnsweredRequest):
        receiver.given_up()


def _undo(command: RemotingCommand, kept: RemotingCommand) -> str | None:
    """Takes back what a hook may not change; returns what that was."""
    fault = None
    for name in command.__struct_fields__:
        if name != "ext_fields" and getattr(command, name) is not getattr(kept, name):
            setattr(command, name, getattr(kept, name))
            fault = f"changed {name}, and may only add to ext_fields"
    if not _sound(command.ext_fields):
        command.ext_fields = kept.ext_fields
        fault = "left ext_fields that are no texts"
    return fault


def _sound(ext: object) -> bool:
    if not isinstance(ext, dict):
        return False
    try:
        for name, value in ext.items():
            if not isinstance(name, str) or not isinstance(value, str | None):
                return False
            name.encode()
            if value is not None:
                value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(hook: RequestHook, fault: str) -> None:
    raise TypeError(f"{hook!r} {fault}; the request goes as it was before")


def guarded(hook: Callable[..., object], *arguments: Any) -> None:
    """Calls a user's hook; what it raises goes to the loop's exception handler, or out of the loop."""
    try:
        hook(*arguments)
    except BaseException as error:  # noqa: BLE001 - no message is the worse for it
        report(f"hook {hook!r} raised", error)
