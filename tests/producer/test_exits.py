"""KeyboardInterrupt and SystemExit in functions of users leave the loop, and every call ends all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from rmq_async import Hook, Message, Producer, SendResult, errors
from rmq_async.testing import ThreadedRocketMQ

pytestmark = pytest.mark.interpreters

TOPIC = "ExitTopic"
CALLS = 8

exits = pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
loops = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
lanes = pytest.mark.parametrize("options", [{}, {"key": "k"}], ids=["in turn", "by key"])

NewLoop = Callable[[], asyncio.AbstractEventLoop]
Scenario = Callable[["Program"], Coroutine[Any, Any, None]]


class Program:
    """A loop that is entered anew whenever something has left it. ``left``: what that was."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: ThreadedRocketMQ, kind: type[BaseException]) -> None:
        self.loop = loop
        self.server = server
        self.namesrv = server.namesrv
        self.kind = kind
        self.left: list[BaseException] = []
        self.reported: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: self.reported.append(context))

    def exit(self, *_: object) -> None:
        raise self.kind("in a function of the user")

    def run(self, scenario: Scenario) -> None:
        main = self.loop.create_task(asyncio.wait_for(scenario(self), 60.0))
        while not main.done():
            try:
                self.loop.run_until_complete(asyncio.wait([main]))
            except (KeyboardInterrupt, SystemExit) as error:
                self.left.append(error)
        main.result()


def run(new_loop: NewLoop, kind: type[BaseException], scenario: Scenario) -> Program:
    loop = new_loop()
    try:
        with ThreadedRocketMQ() as server:
            program = Program(loop, server, kind)
            program.run(scenario)
        assert not program.reported
        assert asyncio.all_tasks(loop) == set()
    finally:
        loop.close()
    return program


@exits
@loops
@lanes
@pytest.mark.parametrize("batching", [False, True], ids=["single", "gathered"])
def test_callback_that_exits_ends_all(
    new_loop: NewLoop, kind: type[BaseException], options: dict[str, Any], batching: bool
) -> None:
    """The answers to the others come in the same read as the answer to the one whose callback exits."""

    async def scenario(program: Program) -> None:
        async with Producer("exits", namesrv=program.namesrv, batching=batching, timeout=60.0) as producer:
            await producer.send(Message(TOPIC, b"warm"), **options)
            called: list[object] = []
            futures = [
                await producer.send_async(
                    Message(TOPIC, b"%d" % number),
                    on_success=program.exit if number == 0 else called.append,
                    on_error=called.append,
                    **options,
                )
                for number in range(CALLS)
            ]
            results = await asyncio.gather(*futures)
            assert [result.attempts for result in results] == [1] * CALLS
            assert called == results[1:]
            for later in await asyncio.gather(*[producer.send(Message(TOPIC, b"later"), **options) for _ in range(3)]):
                assert later.attempts == 1
            await producer.flush(1.0)

    assert [type(error) for error in run(new_loop, kind, scenario).left] == [kind]


@exits
@lanes
@pytest.mark.parametrize("batching", [False, True], ids=["single", "gathered"])
def test_error_callback_that_exits_ends_all(kind: type[BaseException], options: dict[str, Any], batching: bool) -> None:
    """The producer stops while all of them wait."""

    async def scenario(program: Program) -> None:
        called: list[BaseException] = []
        producer = Producer("exits", namesrv=program.namesrv, batching=batching, stop_timeout=0.0)
        async with producer:
            await producer.send(Message(TOPIC, b"warm"), **options)
            program.server.stall("broker-a")
            futures = [
                await producer.send_async(
                    Message(TOPIC, b"%d" % number), on_error=program.exit if number == 0 else called.append, **options
                )
                for number in range(CALLS)
            ]
            await producer.stop()
        ended = await asyncio.gather(*futures, return_exceptions=True)
        assert {type(error) for error in ended} == {errors.ClientStateError}
        assert len(called) == CALLS - 1

    assert [type(error) for error in run(asyncio.new_event_loop, kind, scenario).left] == [kind]


class Exiting(Hook):
    """Of which one method exits, once."""

    def __init__(self, program: Program, method: str) -> None:
        self.program = program
        self.method = method
        self.seen: list[str] = []

    def met(self, method: str) -> None:
        self.seen.append(method)
        if method == self.method:
            self.method = ""
            self.program.exit()

    def check_forbidden(self, context: Any) -> None:
        self.met("check_forbidden")

    def before_send(self, context: Any) -> None:
        self.met("before_send")

    def after_send(self, context: Any) -> None:
        self.met("after_send")

    def before_request(self, address: str, command: Any) -> None:
        if command.code in (310, 320):
            self.met("before_request")

    def after_request(self, address: str, command: Any, response: Any, error: Any) -> None:
        if command.code in (310, 320):
            self.met("after_request")


@lanes
@pytest.mark.parametrize("batching", [False, True], ids=["single", "gathered"])
@pytest.mark.parametrize("method", ["check_forbidden", "before_send", "after_send", "before_request", "after_request"])
def test_hook_that_exits_ends_all(options: dict[str, Any], batching: bool, method: str) -> None:
    async def scenario(program: Program) -> None:
        hook = Exiting(program, method)
        hooks = [hook, Exiting(program, "")]
        async with Producer("exits", namesrv=program.namesrv, hooks=hooks, batching=batching, timeout=60.0) as producer:
            calls = [producer.send(Message(TOPIC, b"%d" % number), **options) for number in range(CALLS)]
            ended = await asyncio.gather(*calls, return_exceptions=True)
            kinds = [type(each) for each in ended]
            if method != "check_forbidden":
                assert kinds == [SendResult] * CALLS
            else:  # what a hook has not allowed is not sent
                refused = errors.ClientStateError if batching or options else SystemExit
                assert set(kinds) <= {refused, SendResult}
                assert kinds.count(refused) == 1 or not options
            await producer.send(Message(TOPIC, b"later"), **options)
            await producer.flush(1.0)
        for each in hooks:
            assert each.seen.count("before_send") == each.seen.count("after_send")

    assert [type(error) for error in run(asyncio.new_event_loop, SystemExit, scenario).left] == [SystemExit]


@exits
@pytest.mark.parametrize("batching", [False, True], ids=["single", "gathered"])
def test_selector_that_exits_at_a_retry(kind: type[BaseException], batching: bool) -> None:
    """The call ends as its first attempt did; the loop is left once."""

    async def scenario(program: Program) -> None:
        asked: list[object] = []

        def choose(queues: Any, message: Message, key: Any) -> Any:
            asked.append(message)
            if len(asked) == 3:
                program.exit()
            return queues[0]

        async with Producer("exits", namesrv=program.namesrv, queue_selector=choose, batching=batching) as producer:
            await producer.send(Message(TOPIC, b"warm"))
            program.server.fail_next(14, request=310)
            future = await producer.send_async(Message(TOPIC, b"refused"), timeout=60.0)
            with pytest.raises(errors.BrokerError):
                await future
            await producer.send(Message(TOPIC, b"later"))
            await producer.flush(1.0)

    assert [type(error) for error in run(asyncio.new_event_loop, kind, scenario).left] == [kind]


def test_exception_handler_that_exits_ends_all() -> None:
    """A service that ends itself when anything unforeseen is reported."""

    async def scenario(program: Program) -> None:
        asyncio.get_running_loop().set_exception_handler(program.exit)

        def broken(_: object) -> None:
            raise ValueError("a bug")

        async with Producer("exits", namesrv=program.namesrv, batching=True, timeout=60.0) as producer:
            await producer.send(Message(TOPIC, b"warm"))
            futures = [
                await producer.send_async(Message(TOPIC, b"%d" % number), on_success=broken if number == 0 else None)
                for number in range(CALLS)
            ]
            assert len(await asyncio.gather(*futures)) == CALLS

    assert [type(error) for error in run(asyncio.new_event_loop, SystemExit, scenario).left] == [SystemExit]
