"""The short path of watched sends and the general path do the same: frames, results, errors, and what hooks see in which order.

A call with a ``timeout`` takes the general path, so each message is sent both ways.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_async import Credentials, Hook, Message, RocketMQError, SendContext
from rmq_async.errors import ForbiddenError

from ..support.calls import counted
from ..support.fakes import TOPIC, Cluster, each, refuse, status, stored
from .support import producer
from .test_fast_path import EXAMPLES, FIELDS, USER, shown

pytestmark = pytest.mark.virtual_time

ANSWERS = {"stored": stored, "not flushed": status(10), "tried again": each(refuse(1), stored), "refused": refuse(13)}
ADDED: list[dict[Any, Any]] = [{}, {"traceparent": "00-1"}, {"a": "x" * 40_000}, {"a": ""}, {"KEYS": "k"}, {"é": "ü"}]


class Records(Hook):
    """Keeps what it sees. ``added``: properties that it adds. ``refuses``: whether it refuses messages."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.added: dict[Any, Any] = {}
        self.refuses = False

    def check_forbidden(self, context: SendContext) -> None:
        self.note("check", context)
        if self.refuses:
            raise ForbiddenError("closed")

    def before_send(self, context: SendContext) -> None:
        self.note("before", context)
        context.properties.update(self.added)

    def after_send(self, context: SendContext) -> None:
        self.note("after", context)

    def note(self, when: str, context: SendContext) -> None:
        fields = msgspec.structs.asdict(context)
        assert (fields.pop("elapsed") > 0) == (when == "after")
        assert len(fields.pop("msg_ids")) == 1
        result, error = fields.pop("result"), fields.pop("error")
        self.seen.append((when, fields, anonymous(result), repr(error)))


def anonymous(result: Any) -> Any:
    """The result without what is another one for each send."""
    return None if result is None else msgspec.structs.replace(result, msg_id="", offset_msg_id="", queue_offset=0)


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@EXAMPLES
@given(
    drawn=st.lists(
        st.tuples(FIELDS, st.sampled_from(ADDED), st.sampled_from(sorted(ANSWERS)), st.booleans()), min_size=1, max_size=5
    )
)
def test_both_paths_send_and_show_the_same(signed: bool, drawn: list[tuple[dict[str, Any], dict[Any, Any], str, bool]]) -> None:
    async def outcome(cluster: Cluster, sender: Any, hook: Records, message: Message, answer: str, **options: Any) -> Any:
        cluster.a.sends.clear()
        hook.seen.clear()
        answers = {**ANSWERS, "tried again": each(refuse(1), stored)}
        cluster.a.answer = answers[answer]
        try:
            ended = anonymous(await sender.send(message, **options))
        except RocketMQError as error:
            ended = repr(error)
        return ended, [shown(sent) for sent in cluster.a.sends], list(hook.seen)

    async def compare() -> None:
        hook = Records()
        options: dict[str, Any] = {"hooks": [hook], "retries": 1} | ({"credentials": USER} if signed else {})
        async with Cluster(1, queues=1) as cluster, producer(cluster, **options) as sender:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # for properties that cannot be
            await sender.send(Message(TOPIC, b"makes route and connection"))
            for fields, hook.added, answer, hook.refuses in drawn:
                message = Message(TOPIC, **fields)
                short = await outcome(cluster, sender, hook, message, answer)
                assert short == await outcome(cluster, sender, hook, message, answer, timeout=3.0)

    asyncio.run(compare())  # on a real loop, whose retries have real pauses: one in virtual time costs more for each example


@pytest.mark.parametrize("how", ["hook", "trace", "signed"])
async def test_the_short_path_takes_fewer_calls(cluster: Cluster, how: str) -> None:
    options: dict[str, Any] = {"trace": {"trace": True}}.get(how, {"hooks": [Records()]})
    if how == "signed":
        options["credentials"] = Credentials("alice", "her secret")
    async with producer(cluster, **options) as sender:
        figures = []
        for timeout in (None, 3.0):
            for _ in range(3):
                await sender.send(Message(TOPIC, b"body"), timeout=timeout)
            with counted() as calls:
                await sender.send(Message(TOPIC, b"body"), timeout=timeout)
            figures.append(calls.count)
    assert figures[0] < figures[1]
