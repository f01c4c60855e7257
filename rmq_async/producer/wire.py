"""From one attempt to its frame on a connection.

The usual way is a template of the queue. What is watched by hooks, signed, or said in a form that no template has goes the general
way, which costs four times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from rmq_protocol.command import encode_command
from rmq_protocol.constants import RequestCode

from ..transport import Connection, PassedRequest, Pending, Receiver
from .general import reply_command, send_command
from .lanes import LaneSettings, Target
from .outgoing import Outgoing
from .watching import BegunAttempt

__all__ = ["Wire"]

SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)


class Wire:
    """Of one producer. ``born_ms``: the time as thirteen digits. ``owner`` marks the entries in the connections' tables."""

    __slots__ = ("_born_ms", "_owner", "_settings", "_window")

    def __init__(self, settings: LaneSettings, born_ms: Callable[[], bytes], owner: object, window: int) -> None:
        self._settings = settings
        self._born_ms = born_ms
        self._owner = owner
        self._window = window

    def submit(
        self,
        connection: Connection,
        target: Target,
        outgoing: Outgoing,
        receiver: Receiver,
        deadline: float,
        call_deadline: float,
        attempt: BegunAttempt | None = None,
    ) -> Pending:
        """Puts one attempt on its way. ``attempt``: what hooks have seen of it already."""
        if target.general or outgoing.watch is not None or outgoing.code:
            return self._general(connection, target, outgoing, receiver, deadline, call_deadline, attempt)
        batch = outgoing.batch_ids is not None
        template, code = (target.batch, SEND_BATCH) if batch else (target.single, SEND)
        opaque, born_ms = connection.next_opaque(), self._born_ms()
        parts = template.parts(opaque, born_ms, outgoing.properties, outgoing.body, outgoing.sys_flag, outgoing.flag)
        return connection.start_send(opaque, parts, receiver, deadline, call_deadline, code, self._owner, self._window)

    def _general(
        self,
        connection: Connection,
        target: Target,
        outgoing: Outgoing,
        receiver: Receiver,
        deadline: float,
        call_deadline: float,
        attempt: BegunAttempt | None,
    ) -> Pending:
        """``submit`` for what is watched, signed, or said in a form that no template has."""
        if attempt is None and outgoing.watch is not None:
            attempt = outgoing.watch.begin(outgoing, target)
        if attempt is not None:
            receiver = attempt.receiver(receiver, outgoing, target)
            outgoing = attempt.added(outgoing)
        passed = None
        try:
            code, parts, passed = self.frame(connection, target, outgoing, opaque := connection.next_opaque())
            if passed is not None:
                receiver = passed.watching(receiver, reply_command)
            return connection.start_send(opaque, parts, receiver, deadline, call_deadline, code, self._owner, self._window)
        except Exception as error:
            if attempt is not None:
                attempt.failed(error)
            if passed is not None:
                passed.tell(None, error)
            raise

    def frame(
        self, connection: Connection, target: Target, outgoing: Outgoing, opaque: int, *, oneway: bool = False
    ) -> tuple[int, bytes | list[bytes], PassedRequest | None]:
        """Code and frame of a send, by the template where that will do; else also the request that passed the hooks, if any.

        ``oneway``: for what no template will do; others are filled in where they are queued.
        """
        born_ms = self._born_ms()
        if not target.general and not outgoing.code:
            batch = outgoing.batch_ids is not None
            template = target.batch if batch else target.single
            parts = template.parts(opaque, born_ms, outgoing.properties, outgoing.body, outgoing.sys_flag, outgoing.flag)
            return (SEND_BATCH if batch else SEND), parts, None
        command = send_command(self._settings, target, outgoing, outgoing.properties, int(born_ms), oneway=oneway)
        passed = None
        if connection.hooks.active:
            passed = connection.hooks.passed(connection.address, command)
            command = passed.command
        try:
            connection.require_open()  # hooks may have closed it
            command = msgspec.structs.replace(command, opaque=opaque)
            whole = encode_command(command, connection.serialize_type, self._settings.max_frame_size)
        except Exception as error:
            if passed is not None:
                passed.tell(None, error)
            raise
        return command.code, whole, passed
