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

from .pending import Receiver

__all__ = ["RequestHook", "RequestHooks", "given_up", "guarded"]


class RequestHook(Protocol):
    """``before``: may add to the command's extFields. ``after``: the answer, the error, or neither for a one-way request."""

    def before(self, address: str, command: RemotingCommand, /) -> None: ...
    def after(
        self, address: str, command: RemotingCommand, response: RemotingCommand | None, error: BaseException | None, /
    ) -> None: ...


class RequestHooks:
    """Of one connection pool. ``namespace``: of the second kind (``NamespaceRpcHook``)."""

    __slots__ = ("_credentials", "_hooks", "_namespace", "active", "on_change", "watched")

    def __init__(self, credentials: SessionCredentials | None = None, namespace: str | None = None) -> None:
        self._credentials = credentials
        self._namespace = namespace
        self._hooks: tuple[RequestHook, ...] = ()
        self.active = credentials is not None or namespace is not None
        """Whether ``before`` does anything. A plain attribute: it is read for every request."""
        self.watched = False
        """Whether ``after`` does anything."""
        self.on_change: list[Callable[[], None]] = []

    def add(self, hook: RequestHook) -> None:
        self._change((*self._hooks, hook))

    def remove(self, hook: RequestHook) -> None:
        self._change(tuple(each for each in self._hooks if each is not hook))

    def before(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """The command as it is to be written; the one given stays as it is."""
        ext: dict[str, str | None] = dict(command.ext_fields or {})
        if self._namespace is not None:
            ext["nsd"], ext["ns"] = "true", self._namespace
        command = msgspec.structs.replace(command, ext_fields=ext)
        for hook in self._hooks:
            kept = dict(command.ext_fields or {})
            guarded(hook.before, address, command)
            if not _sound(command.ext_fields):
                guarded(_refuse, hook)
                command.ext_fields = kept
        if self._credentials is not None:
            command.ext_fields = {**sign(self._credentials, command.ext_fields, (command.body,))}
        return command

    def after(
        self, address: str, command: RemotingCommand, response: RemotingCommand | None, error: BaseException | None
    ) -> None:
        for hook in self._hooks:
            guarded(hook.after, address, command, response, error)

    def watching(
        self, address: str, command: RemotingCommand, receiver: Receiver, read: Callable[[Any], RemotingCommand]
    ) -> Receiver:
        """A receiver that tells the hooks of the answer before it passes it on; ``read`` makes a command of it."""
        return _Watching(self, address, command, receiver, read) if self.watched else receiver

    def _change(self, hooks: tuple[RequestHook, ...]) -> None:
        self._hooks = hooks
        self.watched = bool(hooks)
        self.active = self.watched or self._credentials is not None or self._namespace is not None
        for changed in list(self.on_change):
            changed()


class _Watching:
    """``done``, ``set_result`` and ``set_exception`` of a receiver, seen by the hooks; once."""

    __slots__ = ("_address", "_command", "_hooks", "_read", "_receiver", "_told")

    def __init__(
        self,
        hooks: RequestHooks,
        address: str,
        command: RemotingCommand,
        receiver: Receiver,
        read: Callable[[Any], RemotingCommand],
    ) -> None:
        self._hooks = hooks
        self._address = address
        self._command = command
        self._receiver = receiver
        self._read = read
        self._told = False

    def done(self) -> bool:
        return self._receiver.done()

    def set_result(self, result: Any, /) -> None:
        self._tell(self._read(result), None)
        self._receiver.set_result(result)

    def set_exception(self, exception: Any, /) -> None:
        self._tell(None, exception)
        self._receiver.set_exception(exception)

    def given_up(self) -> None:
        """Nobody waits for the answer any more, and nobody is told but the hooks."""
        self._tell(None, asyncio.CancelledError("given up, nobody waits for the answer any more"))

    def _tell(self, response: RemotingCommand | None, error: BaseException | None) -> None:
        if not self._told:
            self._told = True
            self._hooks.after(self._address, self._command, response, error)


def given_up(receiver: Receiver) -> None:
    """For whoever takes a request out of its table before it is answered."""
    if isinstance(receiver, _Watching):
        receiver.given_up()


def _sound(ext: object) -> bool:
    return isinstance(ext, dict) and all(isinstance(name, str) and isinstance(value, str | None) for name, value in ext.items())


def _refuse(hook: RequestHook) -> None:
    raise TypeError(f"{hook!r} left ext_fields that are no texts; the request goes as it was before")


def guarded(hook: Callable[..., object], *arguments: Any) -> None:
    """Calls a user's hook; what it raises goes to the loop's exception handler."""
    try:
        hook(*arguments)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a user's bug, of which no message is the worse
        asyncio.get_running_loop().call_exception_handler({"message": f"hook {hook!r} raised", "exception": error})
