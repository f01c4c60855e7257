"""Hooks that record their calls, and the ways to send that they watch."""

from __future__ import annotations

from collections import Counter

from rmq_async import Hook, SendContext
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from ..support import Send, awaited, batched, deferred

WAYS: dict[str, Send] = {"sync": awaited, "async": deferred, "batch": batched}


class Seen(Hook):
    """Records its calls; ``order``: their kinds as they came."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.contexts: list[SendContext] = []
        self.ends: list[tuple[int, str]] = []
        """Of each attempt that is over: its number and how it ended."""
        self.calls_after: Counter[int] = Counter()

    def check_forbidden(self, context: SendContext) -> None:
        self.order.append("check")
        assert (context.elapsed, context.result, context.error) == (0.0, None, None)

    def before_send(self, context: SendContext) -> None:
        self.order.append("before")
        assert (context.elapsed, context.result, context.error) == (0.0, None, None)
        self.contexts.append(context)

    def after_send(self, context: SendContext) -> None:
        self.order.append("after")
        assert context in self.contexts
        self.calls_after[id(context)] += 1
        ended = type(context.error).__name__ if context.error is not None else "stored" if context.result else "queued"
        self.ends.append((context.attempt, ended))

    @property
    def ended(self) -> list[tuple[int, str]]:
        """Attempt and end, once each, of every attempt that began."""
        assert set(self.calls_after.values()) <= {1}
        assert len(self.calls_after) == len(self.contexts)
        return self.ends


class Requests(Hook):
    def __init__(self) -> None:
        self.before: list[int] = []
        self.after: list[tuple[int, int | None, str | None]] = []

    def before_request(self, address: str, command: RemotingCommand) -> None:
        self.before.append(command.code)

    def after_request(
        self, address: str, command: RemotingCommand, response: RemotingCommand | None, error: BaseException | None
    ) -> None:
        self.after.append((command.code, None if response is None else response.code, type(error).__name__ if error else None))

    def of(self, *codes: int) -> list[tuple[int | None, str | None]]:
        return [(answer, error) for code, answer, error in self.after if code in codes]

    @property
    def balanced(self) -> bool:
        return Counter(self.before) == Counter(code for code, *_ in self.after)


SEND = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
