"""Prepares a request before it is written: adds the namespace, calls users' hooks, and signs it.

A signature covers all extFields and the body, so nothing may be added after it (``AclSigner``). Pre-encoded templates of frames are
used only without hooks and namespace (``only_sign``); the templates of sends sign their own frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from rmq_protocol.command import RemotingCommand
from rmq_protocol.signing import SessionCredentials, sign

from ..hooks import RequestHook
from .loop_errors import report
from .pending import Receiver


class RequestHooks:
    """The hooks, credentials and namespace of one connection pool.

    Args:
        namespace: The value of the extField ``ns``, which is added to each request as in Java's ``NamespaceRpcHook``. None adds no
            field.

    Attributes:
        on_change: Functions that are called when a hook is added or removed.
    """

    __slots__ = ("_credentials", "_hooks", "_namespace", "_uses", "active", "on_change", "only_sign")

    def __init__(self, credentials: SessionCredentials | None = None, namespace: str | None = None) -> None:
        self._credentials = credentials
        self._namespace = namespace
        self._hooks: tuple[RequestHook, ...] = ()
        self._uses: dict[RequestHook, int] = {}
        """Number of ``add`` calls for each hook. Producers of one client may share a hook; it is called once for each request."""
        self.active = credentials is not None or namespace is not None
        """Whether requests must be passed through ``hooked``. It is a plain attribute because it is read for every request."""
        self.only_sign = namespace is None
        """Whether requests need no change other than a signature, which the templates of sends can add."""
        self.on_change: list[Callable[[], None]] = []

    def add(self, hook: RequestHook) -> None:
        self._uses[hook] = self._uses.get(hook, 0) + 1
        self._change()

    def remove(self, hook: RequestHook) -> None:
        """Undo one call of ``add``. The ``after`` method of the hook is still called for pending requests."""
        self._uses[hook] -= 1
        if not self._uses[hook]:
            del self._uses[hook]
        self._change()

    def hooked(self, address: str, command: RemotingCommand) -> HookedRequest:
        """Return the request as it must be written: with the namespace, the changes of hooks, and a signature. ``command`` is not
        changed.

        Raises:
            LocalProtocolError: If a field cannot be signed.
        """
        ext: dict[str, str | None] = dict(command.ext_fields or {})
        if self._namespace is not None:
            ext["nsd"], ext["ns"] = "true", self._namespace
        command = msgspec.structs.replace(command, ext_fields=ext)
        hooks = self._hooks
        for hook in hooks:
            kept = msgspec.structs.replace(command, ext_fields=dict(command.ext_fields or {}))
            call_hook(hook.before, address, command)
            if (fault := _undo(command, kept)) is not None:
                text = f"hook {hook!r} {fault}; the request is sent without this change"
                report(text, TypeError(text))
        if self._credentials is not None:
            command.ext_fields = {**sign(self._credentials, command.ext_fields, (command.body,))}
        return HookedRequest(address, command, hooks)

    def _change(self) -> None:
        self._hooks = tuple(self._uses)
        self.active = bool(self._hooks) or self._credentials is not None or self._namespace is not None
        self.only_sign = not self._hooks and self._namespace is None
        for changed in list(self.on_change):
            changed()


class HookedRequest(msgspec.Struct):
    """A request for which the ``before`` methods of the hooks were called. ``finish`` calls their ``after`` methods once."""

    address: str
    command: RemotingCommand
    hooks: tuple[RequestHook, ...]
    finished: bool = False

    def finish(self, response: RemotingCommand | None, error: BaseException | None) -> None:
        if not self.finished:
            self.finished = True
            for hook in self.hooks:
                call_hook(hook.after, self.address, self.command, response, error)

    def receiver(self, receiver: Receiver, read: Callable[[Any], RemotingCommand]) -> Receiver:
        """Return a receiver that calls the hooks before it passes the response to ``receiver``. Return ``receiver`` itself if there
        are no hooks.

        Args:
            read: Converts the response to a RemotingCommand for the hooks.
        """
        return _HookedReceiver(self, receiver, read) if self.hooks else receiver


class _HookedReceiver:
    """A receiver whose ``done`` returns False until its hooks have been called, so that the hooks get the response even if the
    caller was cancelled.
    """

    __slots__ = ("_read", "_receiver", "_request")

    def __init__(self, request: HookedRequest, receiver: Receiver, read: Callable[[Any], RemotingCommand]) -> None:
        self._request = request
        self._receiver = receiver
        self._read = read

    def done(self) -> bool:
        return self._request.finished and self._receiver.done()

    def set_result(self, result: Any, /) -> None:
        self._request.finish(self._read(result), None)
        if not self._receiver.done():
            self._receiver.set_result(result)

    def set_exception(self, exception: Any, /) -> None:
        self._request.finish(None, exception)
        if not self._receiver.done():
            self._receiver.set_exception(exception)

    def cancel(self) -> None:
        """Call the hooks with a CancelledError, and do not call the receiver."""
        self._request.finish(None, asyncio.CancelledError("the caller no longer waits for the response"))


def cancel_hooked(receiver: Receiver) -> None:
    """Call the hooks of a request that was removed from its table before its response arrived."""
    if isinstance(receiver, _HookedReceiver):
        receiver.cancel()


def _undo(command: RemotingCommand, kept: RemotingCommand) -> str | None:
    """Revert the changes that a hook may not make. Return a description of the last of these changes, or None if there are none."""
    fault = None
    for name in command.__struct_fields__:
        if name != "ext_fields" and getattr(command, name) is not getattr(kept, name):
            setattr(command, name, getattr(kept, name))
            fault = f"changed {name}, but may only change ext_fields"
    if not _sound(command.ext_fields):
        command.ext_fields = kept.ext_fields
        fault = "set ext_fields to something other than a dict from str to str or None, all encodable as UTF-8"
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


def call_hook(hook: Callable[..., object], *arguments: Any) -> None:
    """Call a user's hook. An Exception is passed to the loop's exception handler; KeyboardInterrupt is raised out of the loop."""
    try:
        hook(*arguments)
    except BaseException as error:  # noqa: BLE001 - reported; the message is sent all the same
        report_hook(hook, error)


def report_hook(hook: object, error: BaseException) -> None:
    """Report the error of a user's hook."""
    report(f"hook {hook!r} raised", error)
