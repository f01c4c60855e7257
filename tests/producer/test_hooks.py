"""Hooks are told of every attempt and every request exactly once, whatever becomes of them, and can hurt nobody."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from rmq_async import (
    ClientStateError,
    ConfigError,
    ConnectError,
    Hook,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    RequestTimeoutError,
    RocketMQError,
    SendContext,
    SendError,
    SystemBusyError,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import ForbiddenError
from rmq_async.producer.watching import Watch, WatchedAttempt
from rmq_protocol.command import RemotingCommand, encode_command, make_response
from rmq_protocol.constants import RequestCode
from rmq_protocol.properties import decode_properties
from rmq_protocol.trace import MessageType

from .peers import TOPIC, Cluster, each, late, refuse, reset, silent, stored
from .support import Calls, Send, awaited, batched, deferred, message, messages, outcomes, producer, spin, until

WAYS: dict[str, Send] = {"sync": awaited, "async": deferred, "batch": batched}


class Seen(Hook):
    """Writes down what it is told; ``order``: the kinds of calls as they came."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.contexts: list[SendContext] = []
        self.told: list[tuple[int, str, int, str]] = []
        """Of each attempt that is over: number, broker, how often told, and how it ended."""
        self.ends: Counter[int] = Counter()
        self.requests: Counter[int] = Counter()
        self.answers: list[tuple[RemotingCommand, RemotingCommand | None, BaseException | None]] = []

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
        self.ends[id(context)] += 1
        ended = type(context.error).__name__ if context.error is not None else "stored" if context.result else "queued"
        self.told.append((context.attempt, context.broker, self.ends[id(context)], ended))

    @property
    def ended(self) -> list[tuple[int, str]]:
        """Attempt and end, once each, of every attempt that began."""
        assert set(self.ends.values()) <= {1}
        assert len(self.ends) == len(self.contexts)
        return [(number, how) for number, _, _, how in self.told]


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


# -- attempts, each told before and after


@pytest.mark.parametrize("name", WAYS)
async def test_a_send_that_is_stored_at_once(cluster: Cluster, name: str) -> None:
    seen = Seen()
    async with producer(cluster, hooks=[seen]) as sender:
        result = await WAYS[name](sender)
    assert seen.order == ["check", "before", "after"]
    assert seen.ended == [(1, "stored")]
    [context] = seen.contexts
    assert context.result == result
    assert (context.queue, context.broker, context.address) == (result.queue, "a", cluster.a.address)
    assert (context.group, context.mode, context.message_type) == (
        "group", "async" if name == "async" else "sync", MessageType.NORMAL
    )  # fmt: skip
    assert context.msg_id == (result.msg_ids[0] if name == "batch" else result.msg_id)
    assert 0 < context.elapsed < 1
    given = context.message if name == "batch" else (context.message,)
    assert [one.body for one in given] == [b"body"]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", WAYS)
async def test_each_retry_is_an_attempt_of_its_own(pair: Cluster, name: str) -> None:
    seen = Seen()
    pair.answer(each(refuse(2), stored))
    pair.a.answer = pair.b.answer = each(refuse(1), stored)
    async with producer(pair, hooks=[seen]) as sender:
        result = await WAYS[name](sender)
    assert seen.order == ["check", "before", "after"] * result.attempts
    assert [number for number, _ in seen.ended] == list(range(1, result.attempts + 1))
    assert seen.ended[-1] == (result.attempts, "stored")
    assert {how for _, how in seen.ended[:-1]} == {"BrokerSystemError"}
    assert len({context.msg_id for context in seen.contexts}) == 1


@pytest.mark.parametrize("name", WAYS)
async def test_a_late_answer_ends_the_call_and_each_attempt_is_told_once(pair: Cluster, name: str) -> None:
    seen, requests = Seen(), Requests()
    first = each(late(0.3), silent)
    pair.answer(lambda link, sent: first(link, sent))
    async with producer(pair, hooks=[seen, requests], timeout=2.0, attempt_timeout=0.2) as sender:
        result = await WAYS[name](sender)
        assert result.attempts == 2
        assert len(seen.contexts) == 2
        assert seen.ended == [(1, "RequestTimeoutError"), (2, "GivenUpError")]
    assert requests.of(*SEND) == [(None, "RequestTimeoutError"), (None, "CancelledError")]
    assert requests.balanced


@pytest.mark.parametrize("name", WAYS)
async def test_no_answer_at_all(cluster: Cluster, name: str) -> None:
    seen, requests = Seen(), Requests()
    cluster.a.answer = silent
    async with producer(cluster, hooks=[seen, requests]) as sender:
        with pytest.raises(RequestTimeoutError):
            await WAYS[name](sender, timeout=0.3)
    assert seen.ended == [(1, "RequestTimeoutError")]
    assert 0.05 < seen.contexts[0].elapsed < 0.3 + 1  # the rest of the 0.3 s went into the route and the connection
    assert requests.of(*SEND) == [(None, "RequestTimeoutError")]


@pytest.mark.parametrize("name", WAYS)
async def test_no_connection(cluster: Cluster, name: str) -> None:
    seen = Seen()
    await cluster.a.stop()
    async with producer(cluster, hooks=[seen], retries=1, async_retries=1) as sender:
        await sender.fetch_publish_queues("T")
        for options in ({}, {"queue": cluster.queue()}):
            with pytest.raises(SendError) as told:
                await WAYS[name](sender, timeout=0.4, **options)
            assert [type(attempt.error) for attempt in told.value.attempts] == [ConnectError, ConnectError]
        assert seen.ended == [(1, "ConnectError"), (2, "ConnectError")] * 2


@pytest.mark.parametrize("name", WAYS)
async def test_a_connection_that_breaks(cluster: Cluster, name: str) -> None:
    seen, requests = Seen(), Requests()
    cluster.a.answer = each(reset, stored)
    async with producer(cluster, hooks=[seen, requests]) as sender:
        await WAYS[name](sender)
    assert seen.ended == [(1, "ConnectionLostError"), (2, "stored")]
    assert requests.of(*SEND) == [(None, "ConnectionLostError"), (0, None)]


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("name", WAYS)
async def test_cancelled(pair: Cluster, name: str, explicit: bool) -> None:
    seen, requests = Seen(), Requests()
    pair.answer(silent)
    async with producer(pair, hooks=[seen, requests]) as sender:
        call = asyncio.ensure_future(WAYS[name](sender, **({"queue": pair.queue()} if explicit else {})))
        await until(lambda: pair.sends)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert seen.ended == [(1, "CancelledError")]
        await spin(2)  # what gathers for a queue looks after its requests once in an iteration
        assert requests.of(*SEND) == [(None, "CancelledError")]


@pytest.mark.parametrize("name", WAYS)
async def test_cancelled_in_its_second_attempt(pair: Cluster, name: str) -> None:
    seen = Seen()
    first = each(refuse(1), silent)
    pair.answer(lambda link, sent: first(link, sent))
    async with producer(pair, hooks=[seen]) as sender:
        call = asyncio.ensure_future(WAYS[name](sender))
        await until(lambda: len(pair.sends) == 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: len(seen.told) == 2)
        assert seen.ended == [(1, "BrokerSystemError"), (2, "CancelledError")]


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("name", WAYS)
async def test_stopped(pair: Cluster, name: str, attempt: int) -> None:
    seen, requests = Seen(), Requests()
    first = each(*[refuse(1)] * (attempt - 1), silent)
    pair.answer(lambda link, sent: first(link, sent))
    sender = producer(pair, hooks=[seen, requests])
    await sender.start()
    call = asyncio.ensure_future(WAYS[name](sender))
    await until(lambda: len(pair.sends) == attempt)
    await sender.stop(0.05)
    with pytest.raises(ClientStateError):
        await call
    assert seen.ended[-1] == (attempt, "ClientStateError")
    assert len(seen.ended) == attempt
    assert len(requests.of(*SEND)) == attempt
    assert requests.of(*SEND)[-1][1] in ("ClientStateError", "CancelledError")


async def test_one_way(cluster: Cluster) -> None:
    seen, requests = Seen(), Requests()
    async with producer(cluster, hooks=[seen, requests], oneway_window=3) as sender:
        for _ in range(6):
            await sender.send_oneway(message())
        await sender.flush()
        assert seen.ended == [(1, "queued")] * 6
        assert {context.mode for context in seen.contexts} == {"oneway"}
        answers = Counter(requests.of(*SEND))
        assert set(answers) == {(None, None), (0, None)}
        assert sum(answers.values()) == 6
        assert requests.balanced
    await cluster.a.stop()
    async with producer(cluster, hooks=[seen]) as sender:
        with pytest.raises(ConnectError):
            await sender.send_oneway(message())
    assert seen.ended[6:] == [(1, "ConnectError")]


async def test_callbacks_come_after_the_hooks(cluster: Cluster) -> None:
    order: list[str] = []

    class Order(Hook):
        def after_send(self, context: SendContext) -> None:
            order.append("hook")

    async with producer(cluster, hooks=[Order()]) as sender:
        future = await sender.send_async(message(), on_success=lambda result: order.append("callback"))
        await future
        future = await sender.send_batch_async(messages(2), on_success=lambda result: order.append("callback"))  # type: ignore[assignment]
        await future
    assert order == ["hook", "callback"] * 2


async def test_kinds_of_messages(cluster: Cluster) -> None:
    seen = Seen()
    async with producer(cluster, hooks=[seen]) as sender:
        for options in ({}, {"delay_level": 1}, {"delay": 1.0}, {"deliver_at": 2e9}, {"sharding_key": "s"}):
            await sender.send(message(**options))
    delay = MessageType.DELAY
    assert [context.message_type for context in seen.contexts] == [MessageType.NORMAL, delay, delay, delay, MessageType.ORDER]


async def test_contexts_say_where_they_come_from() -> None:
    """As Java's SendMessageContext (bornHost) and CheckForbiddenContext (nameSrvAddr, unitMode) do."""
    seen = Seen()
    async with (
        EmbeddedRocketMQ() as server,
        Producer(
            "g", namesrv=f"{server.namesrv};127.0.0.1:1", hooks=[seen], client_ip="10.9.8.7", unit_mode=True, unit_name="east"
        ) as sender,
        Producer("h", namesrv=server.namesrv, hooks=[seen]) as plain,
    ):
        await sender.send(message())
        await sender.send_batch(messages(2))
        await plain.send(message())
    told = [(context.born_host, context.name_servers, context.unit_mode) for context in seen.contexts]
    there = server.namesrv
    assert told == [("10.9.8.7", (there, "127.0.0.1:1"), True)] * 2 + [("127.0.0.1", (there,), False)]


# -- refusing


@pytest.mark.parametrize("name", [*WAYS, "oneway"])
async def test_a_hook_may_refuse_a_message(pair: Cluster, name: str) -> None:
    class Refuses(Seen):
        def check_forbidden(self, context: SendContext) -> None:
            super().check_forbidden(context)
            raise ForbiddenError(f"{context.queue.topic} is closed")

    refuses, behind = Refuses(), Seen()
    async with producer(pair, hooks=[refuses, behind]) as sender:
        with pytest.raises(ForbiddenError, match="T is closed") as told:
            await (sender.send_oneway(message()) if name == "oneway" else WAYS[name](sender))
        assert not told.value.maybe_stored
        calls = Calls()
        future = await sender.send_async(message(), **calls.both)
        with pytest.raises(ForbiddenError):
            await future
        assert [type(error) for error in calls.errors] == [ForbiddenError]
    assert refuses.order == ["check"] * 2
    assert not behind.order
    assert not pair.sends


@pytest.mark.parametrize("name", [*WAYS, "oneway"])
async def test_a_check_that_fails_refuses_too(cluster: Cluster, name: str) -> None:
    error: BaseException

    class Broken(Hook):
        def check_forbidden(self, context: SendContext) -> None:
            raise error

    async with producer(cluster, hooks=[Broken()]) as sender:
        free = sender._sender.credits.free, sender._sender.oneway_credits.free
        for each in (KeyError("no such user"), asyncio.CancelledError("no such user")):
            error = each
            with pytest.raises(ForbiddenError, match="no such user"):
                await (sender.send_oneway(message()) if name == "oneway" else WAYS[name](sender))
        assert (sender._sender.credits.free, sender._sender.oneway_credits.free) == free
    assert not cluster.sends


@pytest.mark.parametrize("name", [*WAYS, "oneway"])
async def test_a_check_that_ends_the_program_costs_no_credit(cluster: Cluster, name: str) -> None:
    class End(BaseException): ...

    class Ends(Hook):
        def check_forbidden(self, context: SendContext) -> None:
            raise End

    async with producer(cluster, hooks=[Ends()]) as sender:
        free = sender._sender.credits.free, sender._sender.oneway_credits.free
        with pytest.raises(End):
            await (sender.send_oneway(message()) if name == "oneway" else WAYS[name](sender))
        assert (sender._sender.credits.free, sender._sender.oneway_credits.free) == free


async def test_a_retry_may_be_refused(pair: Cluster) -> None:
    class Once(Seen):
        def check_forbidden(self, context: SendContext) -> None:
            if context.attempt == 2:
                raise ForbiddenError("once is enough")

    seen = Once()
    pair.answer(refuse(1))
    async with producer(pair, hooks=[seen]) as sender:
        with pytest.raises(SendError) as told:
            await sender.send(message())
    assert isinstance(told.value.__cause__, ForbiddenError)
    assert seen.ended == [(1, "BrokerSystemError")]
    assert len(pair.sends) == 1


# -- what hooks add


@pytest.mark.parametrize("name", [*WAYS, "oneway"])
async def test_properties_that_a_hook_adds_are_on_the_wire(cluster: Cluster, name: str) -> None:
    class Adds(Hook):
        def before_send(self, context: SendContext) -> None:
            context.properties["traceparent"] = f"00-{context.attempt}"

    cluster.a.answer = each(refuse(1), stored)
    async with producer(cluster, hooks=[Adds()], oneway_window=0) as sender:
        await (sender.send_oneway(message()) if name == "oneway" else WAYS[name](sender))
        await sender.flush()
    await until(lambda: cluster.sends)
    added = [decode_properties(sent.batch[-1].properties) if name == "batch" else sent.properties for sent in cluster.sends]
    assert [properties["traceparent"] for properties in added] == ["00-1"] if name == "oneway" else ["00-1", "00-2"]
    assert all("UNIQ_KEY" in properties for properties in added)


@pytest.mark.parametrize(
    "properties",
    [
        {"KEYS": "k"},
        {"a\x01": "b"},
        {"a": "b\x02"},
        {"": "x"},
        {"a": ""},
        {"a": 1},
        {1: "a"},
        {"a": "x" * 40_000},
        {" ": "x"},
        {"a": " "},
        {"a": "b\x00"},
        {"a": "\ud800"},
    ],
    ids=[
        "reserved",
        "separator in a name",
        "separator in a value",
        "no name",
        "no value",
        "number",
        "numbered",
        "too long",
        "blank name",
        "blank value",
        "nul",
        "no Unicode",
    ],
)
async def test_properties_that_cannot_be_are_reported_and_left_out(
    cluster: Cluster, properties: dict[Any, Any], loop_errors: list[dict[str, Any]]
) -> None:
    class Adds(Hook):
        def before_send(self, context: SendContext) -> None:
            context.properties.update(properties)

    async with producer(cluster, hooks=[Adds()]) as sender:
        await sender.send(message())
    assert set(cluster.sends[0].properties) == {"UNIQ_KEY", "WAIT"}
    assert len(loop_errors) == 1
    loop_errors.clear()


@pytest.mark.parametrize("name", [*WAYS, "oneway"])
async def test_a_property_that_a_hook_adds_replaces_the_messages_own(cluster: Cluster, name: str) -> None:
    class Adds(Hook):
        def before_send(self, context: SendContext) -> None:
            context.properties["traceparent"] = "the hook's"

    own = message(properties={"a": "b", "traceparent": "mine", "xtraceparent": "other"})
    async with producer(cluster, hooks=[Adds()], oneway_window=0) as sender:
        if name == "batch":
            await sender.send_batch([own])
        elif name == "oneway":
            await sender.send_oneway(own)
        else:
            await (await sender.send_async(own) if name == "async" else sender.send(own))
        await sender.flush()
    await until(lambda: cluster.sends)
    (sent,) = cluster.sends
    text = sent.batch[0].properties.decode() if name == "batch" else sent.fields["i"]
    assert text.endswith("WAIT\x01true\x02a\x01b\x02xtraceparent\x01other\x02traceparent\x01the hook's\x02")
    assert text.count("traceparent") == 2


# -- hooks that raise


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
async def test_a_hook_that_raises_hurts_nobody(
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
    assert all("the request goes as it was before" in str(context["exception"]) for context in loop_errors)
    loop_errors.clear()


async def test_a_request_that_has_no_form_is_told_and_closes_no_window(cluster: Cluster) -> None:
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
                    with pytest.raises(RocketMQError) as told:
                        await way(sender)
                    assert type(told.value).__name__ == "LocalProtocolError"
        assert long.balanced
        assert {error for _, error in long.of(*SEND)} == {"LocalProtocolError"}
        for _ in range(4):
            await other.send_oneway(message(), timeout=0.5)


# -- requests


async def test_requests_of_every_kind_are_seen_once() -> None:
    requests = Requests()
    async with EmbeddedRocketMQ() as server:
        options: dict[str, Any] = {"namesrv": server.namesrv}
        async with (
            Producer("p", hooks=[requests], oneway_window=2, **options) as sender,
            PullConsumer("c", **options) as consumer,  # shares the producer's client
        ):
            await sender.send(Message(TOPIC, b"x"))
            await sender.send(Message(TOPIC, b"x"), key=1)
            await deferred(sender)
            await batched(sender)
            for _ in range(3):
                await sender.send_oneway(Message(TOPIC, b"x"))
            await sender.flush()
            await consumer.pull(MessageQueue(TOPIC, "broker-a", 0), 0)
            server.fail_next(2, request=RequestCode.SEND_MESSAGE_V2)
            await sender.send(Message(TOPIC, b"x"))
            await until(lambda: requests.balanced)
            seen = Counter(requests.before)
            assert seen[RequestCode.SEND_MESSAGE_V2] == 8
            assert seen[RequestCode.SEND_BATCH_MESSAGE] == 1
            assert {RequestCode.HEART_BEAT, RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.PULL_MESSAGE} <= set(seen)
            assert Counter(requests.of(*SEND)) == {(0, None): 8 - requests.of(*SEND).count((None, None)), (2, None): 1} | {
                (None, None): requests.of(*SEND).count((None, None))
            }


@pytest.mark.parametrize("end", ["answer", "reset"])
async def test_a_request_that_ends_as_its_call_is_cancelled_is_told(cluster: Cluster, end: str) -> None:
    requests = Requests()
    async with producer(cluster, hooks=[requests]) as sender:
        await sender.send(message())
        asked: list[Any] = []
        cluster.a.answer = lambda link, sent: asked.append(sent)
        call = asyncio.ensure_future(sender.send(message()))
        await until(lambda: asked)
        connection = sender._sender.connections[cluster.a.address]
        reply = make_response(asked[0].command, 0, None, cluster.a.stored_fields(asked[0]))
        call.cancel()
        if end == "answer":
            connection.data_received(b"".join(encode_command(reply)))
        else:
            connection.connection_lost(ConnectionResetError())
        await outcomes(call)
        assert requests.of(*SEND)[1:] == [(0, None) if end == "answer" else (None, "ConnectionLostError")]


async def test_who_was_told_of_a_request_is_told_its_end(cluster: Cluster) -> None:
    """Hooks that come or leave while a request is out."""
    early, late_ = Requests(), Requests()
    one = producer(cluster, group="one", hooks=[early])
    async with producer(cluster, group="plain") as sender:
        await one.start()
        await sender.send(message())
        cluster.a.answer = late(0.1)
        call = asyncio.ensure_future(sender.send(message()))
        await until(lambda: len(cluster.sends) == 2)
        async with producer(cluster, group="two", hooks=[late_]):
            await one.stop()
            await call
        assert early.of(*SEND) == [(0, None)] * 2
        assert not late_.of(*SEND)


async def test_one_hook_in_two_producers_sees_each_request_once(cluster: Cluster) -> None:
    requests = Requests()
    async with producer(cluster, group="one", hooks=[requests]) as one:
        async with producer(cluster, group="two", hooks=[requests]) as two:
            await one.send(message())
            await two.send(message())
            assert requests.of(*SEND) == [(0, None)] * 2
        await one.send(message())
        assert requests.of(*SEND) == [(0, None)] * 3


async def test_hooks_leave_with_their_producer(cluster: Cluster) -> None:
    first, second = Seen(), Seen()
    early, late_ = Requests(), Requests()
    one = producer(cluster, group="one", hooks=[first, early])
    two = producer(cluster, group="two", hooks=[second, late_])
    await one.start()
    await two.start()
    await one.send(message())
    await two.send(message())
    assert (len(first.ended), len(second.ended)) == (1, 1)
    assert len(early.of(*SEND)) == len(late_.of(*SEND)) == 2  # requests belong to the client they share
    await one.stop()
    await two.send(message())
    assert (len(first.ended), len(second.ended)) == (1, 2)
    assert (len(early.of(*SEND)), len(late_.of(*SEND))) == (2, 3)
    assert two._instance is not None
    hooks = two._instance.pool.hooks
    await two.stop()
    assert not hooks.active
    assert not hooks.on_change


async def test_a_second_producer_takes_the_short_way_again_when_the_hooked_one_is_gone(cluster: Cluster) -> None:
    async with producer(cluster, group="plain") as plain:
        await plain.send(message())
        usual = plain._sender.plain_below
        assert usual > 0
        async with producer(cluster, group="hooked", hooks=[Requests()]) as hooked:
            assert plain._sender.plain_below == 0
            await plain.send(message())
            await hooked.send(message())
        assert plain._sender.plain_below == usual
        await plain.send(message())
    assert len(cluster.sends) == 4


# -- the context (of contextvars)


async def test_callbacks_run_in_the_callers_context_and_hooks_of_requests_in_nobodys(cluster: Cluster) -> None:
    caller: ContextVar[str] = ContextVar("caller", default="nobody")

    class Asks(Hook):
        def after_request(self, *arguments: Any) -> None:
            if arguments[1].code in SEND:
                seen.append(caller.get())

    seen: list[str] = []
    calls: list[str] = []

    async def one(name: str, sender: Producer) -> None:
        caller.set(name)
        future = await sender.send_async(
            message(),
            timeout=0.2,
            on_success=lambda _: calls.append(caller.get()),
            on_error=lambda _: calls.append(caller.get()),
        )
        await outcomes(future)

    async with producer(cluster, hooks=[Asks()]) as sender:
        for name in ("first", "second"):
            await asyncio.create_task(one(name, sender))
        cluster.a.answer = silent
        await asyncio.create_task(one("third", sender))
    assert calls == ["first", "second", "third"]
    assert seen == ["nobody"] * 3


async def test_no_callers_context_outlives_the_call(cluster: Cluster) -> None:
    class Big: ...

    caller: ContextVar[Big] = ContextVar("caller")

    async def one(sender: Producer) -> weakref.ref[Big]:
        kept = Big()
        caller.set(kept)
        await sender.send(message())
        return weakref.ref(kept)

    times = dict.fromkeys(("timeout", "connect_timeout", "request_timeout"), 0.3)  # a loop keeps timers that were cancelled
    async with producer(cluster, **times) as sender:
        seen = await asyncio.create_task(one(sender))

        def gone() -> bool:
            gc.collect()
            return seen() is None

        await until(gone)
        await sender.send(message())


# -- what is a hook


async def test_objects_of_any_class_will_do(cluster: Cluster) -> None:
    class Any_:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def after_send(self, context: SendContext) -> None:
            self.seen.append(context.msg_id)

    hook = Any_()
    async with producer(cluster, hooks=[hook]) as sender:
        result = await sender.send(message())
    assert hook.seen == [result.msg_id]


def test_what_is_no_hook_is_refused() -> None:
    class Coroutine:
        async def after_send(self, context: SendContext) -> None: ...

    class Nothing: ...

    for hooks in (Coroutine(), [Coroutine()], [Nothing()], [Seen], Seen(), 7, [None]):
        with pytest.raises(ConfigError, match=r"ook|plain function"):
            Producer("g", hooks=hooks)


# -- memory


def told_things() -> list[object]:
    """Those there are, of all tests: an error that pytest keeps keeps some."""
    return [thing for thing in gc.get_objects() if isinstance(thing, Watch | WatchedAttempt | SendContext)]


@pytest.mark.parametrize("how", ["stored", "retried", "refused", "forbidden", "timed out", "cancelled", "one-way", "batch"])
async def test_watched_calls_are_freed(pair: Cluster, how: str, tracked: list[Any]) -> None:
    """``Outgoing`` is invisible to the collector: a cycle through it would stay for ever, and with it what hooks were told."""

    class Keeps(Hook):
        """Keeps the last context, and with it the error and its traceback, whose frames know the call."""

        def before_send(self, context: SendContext) -> None:
            context.state[self] = context

        def check_forbidden(self, context: SendContext) -> None:
            if how == "forbidden":
                raise ForbiddenError("no")

        def after_send(self, context: SendContext) -> None:
            self.last = context

    before = [id(thing) for thing in told_things()]
    answers = {"retried": each(refuse(1), stored), "refused": refuse(13), "timed out": silent, "cancelled": silent}
    answer = answers.get(how, stored)
    pair.answer(lambda link, sent: answer(link, sent))
    async with producer(pair, hooks=[Keeps(), Requests()], retries=1) as sender:
        for _ in range(3):
            if how == "batch":
                await sender.send_batch(messages(2))
            elif how == "one-way":
                await sender.send_oneway(message())
            elif how == "cancelled":
                call = asyncio.ensure_future(sender.send(message()))
                await asyncio.sleep(0.01)
                call.cancel()
                await outcomes(call)
                del call
            else:
                await outcomes(sender.send(message(), timeout=0.1), deferred(sender, timeout=0.1))
    del sender
    tracked.clear()
    await spin(3)
    for _ in range(3):  # a collection that finds something with a finalizer leaves the rest to the next one
        gc.collect()
    assert not [thing for thing in told_things() if id(thing) not in before]
