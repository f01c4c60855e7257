"""A hook that raises, or that spoils a request, changes no outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rmq_async import Hook, RocketMQError, SendContext, SystemBusyError
from rmq_protocol.command import RemotingCommand

from ...support.fakes import Cluster
from ..support import awaited, batched, deferred, message, producer, until
from .support import SEND, WAYS, Requests, Seen

pytestmark = pytest.mark.virtual_time


class Broken(Hook):
    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls: Counter[str] = Counter()

    def _raise(self, name: str) -> None:
        self.calls[name] += 1
        raise self.error

    def before_send(self, context: SendContext) -> None:
        self._raise("before_send")

    def after_send(self, context: SendContext) -> None:
        self._raise("after_send")

    def before_request(self, address: str, command: RemotingCommand) -> None:
        self._raise("before_request")

    def after_request(self, *arguments: Any) -> None:
        self._raise("after_request")


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError(), SystemBusyError("no", code=2)], ids=repr)
async def test_a_hook_that_raises_hurts_no_call(
    cluster: Cluster, error: BaseException, loop_errors: list[dict[str, Any]]
) -> None:
    broken, seen = Broken(error), Seen()
    async with producer(cluster, hooks=[broken, seen], oneway_window=2) as sender:
        results = [await awaited(sender), await deferred(sender), await batched(sender)]
        for _ in range(3):
            await sender.send_oneway(message())
        await sender.flush()
        assert {result.attempts for result in results} == {1}
        assert seen.ended == [(1, "stored")] * 3 + [(1, "queued")] * 3
    assert broken.calls["before_send"] == broken.calls["after_send"] == 6
    assert broken.calls["before_request"] == broken.calls["after_request"]
    assert len(loop_errors) == sum(broken.calls.values())
    assert {context["exception"] for context in loop_errors} == {error}
    loop_errors.clear()


def _spoil_number(command: RemotingCommand) -> None:
    command.ext_fields = {**(command.ext_fields or {}), "e": 7}  # type: ignore[dict-item]


def _spoil_surrogate(command: RemotingCommand) -> None:
    assert command.ext_fields is not None
    command.ext_fields["user"] = "\ud800"


def _spoil_body(command: RemotingCommand) -> None:
    command.body = "text"  # type: ignore[assignment]


def _spoil_code(command: RemotingCommand) -> None:
    command.code = 7


@pytest.mark.parametrize("spoil", [_spoil_number, _spoil_surrogate, _spoil_body, _spoil_code], ids=lambda spoil: spoil.__name__)
async def test_a_hook_that_spoils_a_request_is_undone(
    cluster: Cluster, spoil: Callable[[RemotingCommand], None], loop_errors: list[dict[str, Any]]
) -> None:
    class Spoils(Hook):
        def before_request(self, address: str, command: RemotingCommand) -> None:
            spoil(command)

    class Adds(Hook):
        def before_request(self, address: str, command: RemotingCommand) -> None:
            assert command.ext_fields is not None
            command.ext_fields["mine"] = "yes"

    async with producer(cluster, hooks=[Spoils(), Adds()]) as sender:
        for way in WAYS.values():
            await way(sender)
        await sender.send_oneway(message())
        await sender.flush()
    await until(lambda: len(cluster.sends) == 4)
    assert {sent.fields["mine"] for sent in cluster.sends} == {"yes"}
    assert [sent.command.body for sent in cluster.sends if sent.command.code == SEND[0]] == [b"body"] * 3
    assert loop_errors
    assert all("the request is sent without this change" in str(context["exception"]) for context in loop_errors)
    assert all("Spoils" in context["message"] for context in loop_errors)  # the hook, no function of the library
    loop_errors.clear()


async def test_a_request_that_has_no_form_is_reported_and_closes_no_window(cluster: Cluster) -> None:
    class Long(Requests):
        """A name that binary headers have no room for."""

        def before_request(self, address: str, command: RemotingCommand) -> None:
            super().before_request(address, command)
            if command.code in SEND:
                assert command.ext_fields is not None
                command.ext_fields["n" * 40_000] = "v"

    long = Long()
    async with producer(cluster, "other", serialize_type="rocketmq", oneway_window=2) as other:
        async with producer(cluster, serialize_type="rocketmq", oneway_window=2, hooks=[long]) as sender:
            for _ in range(4):
                for way in (awaited, deferred, batched, lambda sender: sender.send_oneway(message(), timeout=0.2)):
                    with pytest.raises(RocketMQError) as caught:
                        await way(sender)
                    assert type(caught.value).__name__ == "LocalProtocolError"
        assert long.balanced
        assert {error for _, error in long.of(*SEND)} == {"LocalProtocolError"}
        for _ in range(4):
            await other.send_oneway(message(), timeout=0.5)
