"""Makes the frame of an attempt and queues it on a connection.

Most frames are made from a pre-encoded header template of the queue. Requests for which there is no template are built as commands.
The send hooks of an attempt are called here before its frame is made, unless the caller has already called them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from rmq_protocol.command import encode_command
from rmq_protocol.constants import RequestCode

from ...transport import Connection, HookedRequest, Pending, Receiver
from ..routing import HeaderSettings, Target
from .command_form import reply_command, send_command
from .outgoing import AttemptWatch, Outgoing

SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)


class Frames:
    """Makes the frames of one producer and queues them.

    Args:
        born_ms: Returns the current time in milliseconds since the epoch, as thirteen digits.
        owner: The object that identifies the producer's requests in the connections' request tables.
        window: Maximum number of sends in flight on one connection.
    """

    __slots__ = ("_settings", "_window", "born_ms", "owner")

    def __init__(self, settings: HeaderSettings, born_ms: Callable[[], bytes], owner: object, window: int) -> None:
        self._settings = settings
        self.born_ms = born_ms
        self.owner = owner
        self._window = window

    def submit(
        self,
        connection: Connection,
        target: Target,
        outgoing: Outgoing,
        receiver: Receiver,
        deadline: float,
        call_deadline: float,
        attempt: AttemptWatch | None = None,
    ) -> Pending:
        """Queue one attempt on the connection and return its pending request, whose response goes to ``receiver``.

        Args:
            deadline: Monotonic time at which the attempt ends.
            call_deadline: Monotonic time at which the call ends.
            attempt: The attempt as hooks see it, if they were already called for it, else None.

        Raises:
            RocketMQError: If the connection is closed, a hook refuses the attempt or the request cannot be encoded. Hooks that have
                accepted the attempt are called with the error.
        """
        if target.general or outgoing.watch is not None or outgoing.code:
            return self._general(connection, target, outgoing, receiver, deadline, call_deadline, attempt)
        batch = outgoing.batch_ids is not None
        template, code = (target.batch, SEND_BATCH) if batch else (target.single, SEND)
        if not connection.requests.is_open:
            connection.requests.require_open()  # call it before the frame is made: a traceback could show its signature
        opaque, born_ms = connection.requests.next_opaque(), self.born_ms()
        parts = template.parts(opaque, born_ms, outgoing.properties, outgoing.body, outgoing.sys_flag, outgoing.flag)
        pending = Pending(receiver, deadline, call_deadline, code, self.owner)
        connection.requests.start_send(opaque, parts, pending, self._window)
        return pending

    def _general(
        self,
        connection: Connection,
        target: Target,
        outgoing: Outgoing,
        receiver: Receiver,
        deadline: float,
        call_deadline: float,
        attempt: AttemptWatch | None,
    ) -> Pending:
        """Do the work of ``submit`` for attempts with send hooks, and for requests without a template."""
        if attempt is None and outgoing.watch is not None:
            attempt = outgoing.watch.begin(outgoing, target)
        if attempt is not None:
            receiver = attempt.receiver(receiver, outgoing, target)
            outgoing = attempt.added(outgoing)
        passed = None
        try:
            code, parts, passed = self.frame(connection, target, outgoing, opaque := connection.requests.next_opaque())
            if passed is not None:
                receiver = passed.receiver(receiver, reply_command)
            pending = Pending(receiver, deadline, call_deadline, code, self.owner)
            connection.requests.start_send(opaque, parts, pending, self._window)
            return pending
        except Exception as error:
            if attempt is not None:
                attempt.failed(error)
            if passed is not None:
                passed.finish(None, error)
            raise

    def frame(
        self, connection: Connection, target: Target, outgoing: Outgoing, opaque: int, *, oneway: bool = False
    ) -> tuple[int, bytes | list[bytes], HookedRequest | None]:
        """Return the request code, the frame, and the request after request hooks were called (None if there are none).

        Args:
            oneway: Whether to set the flag for one-way requests. It has an effect only for requests without a template.
        """
        born_ms = self.born_ms()
        if not target.general and not outgoing.code:
            batch = outgoing.batch_ids is not None
            template = target.batch if batch else target.single
            parts = template.parts(opaque, born_ms, outgoing.properties, outgoing.body, outgoing.sys_flag, outgoing.flag)
            return (SEND_BATCH if batch else SEND), parts, None
        command = send_command(self._settings, target, outgoing, outgoing.properties, int(born_ms), oneway=oneway)
        passed = None
        if connection.hooks.active:
            passed = connection.hooks.hooked(connection.address, command)
            command = passed.command
        try:
            connection.requests.require_open()  # a hook may have closed the connection
            command = msgspec.structs.replace(command, opaque=opaque)
            whole = encode_command(command, connection.serialize_type, self._settings.max_frame_size)
        except Exception as error:
            if passed is not None:
                passed.finish(None, error)
            raise
        return command.code, whole, passed
