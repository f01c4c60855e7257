"""Functions of users are refused where they are given if each call of them would fail; those whose parameters are not known
pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from rmq_async import (
    ConfigError,
    Consumer,
    Hook,
    Message,
    MessageExt,
    Producer,
    Retry,
    TransactionProducer,
    TransactionStatus,
    allocate_near_rooms,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.inbox import Inbox

pytestmark = pytest.mark.interpreters


class Service:
    def none(self) -> None: ...

    def one(self, message: object) -> None: ...

    def three(self, first: object, second: object, third: object) -> None: ...

    async def waits(self, message: object) -> None: ...

    @staticmethod
    def static(message: object) -> None: ...

    @classmethod
    def of_class(cls, message: object) -> None: ...


class Called:
    def __call__(self, message: object) -> None: ...


class CalledWithoutArguments:
    def __call__(self) -> None: ...


def with_session(function: Callable[..., object]) -> Callable[[object], object]:
    """A decorator that gives the function one argument more."""

    @functools.wraps(function)
    def wrapper(message: object) -> object:
        return function(message, "session")

    return wrapper


@functools.lru_cache
def cached(message: object) -> None: ...


@with_session
def two(message: object, session: object) -> None: ...


class Proxy:
    """Shows what it wraps, as objects of the package wrapt do."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.__wrapped__ = function

    def __call__(self, *arguments: object) -> object:
        return self.__wrapped__(*arguments, "session")

    @property
    def __signature__(self) -> object:
        raise AssertionError("what it shows is not how it is called")


def keyword_only(message: object, *, session: object) -> None: ...


service = Service()
REFUSED = [
    lambda: None,
    service.none,
    service.three,
    Service.one,
    CalledWithoutArguments(),
    functools.partial(service.one, 1),
    functools.partial(lambda message, other: None),
    keyword_only,
    [].clear,
]
FIT = [
    lambda message: None,
    lambda *messages: None,
    lambda message, times=3: None,
    lambda message=None: None,
    service.one,
    service.waits,
    Service.static,
    Service.of_class,
    Called(),
    functools.partial(service.three, 1, 2),
    functools.partial(keyword_only, session=1),
    functools.partial(functools.partial(service.three, 1), 2),
    cached,
    two,
    Proxy(lambda message, session: None),
    [].append,
    print,
    Mock(),
    MagicMock(),
]


class Made:
    """With an argument, as many a handler has, for a connection to a database."""

    def __init__(self, database: object) -> None: ...

    def __call__(self, message: object) -> None: ...


class MadeLater(Made): ...


@pytest.mark.parametrize("function", [Made, MadeLater])
def test_class_of_callable_objects_is_refused(function: Any) -> None:
    """Each message would be done when an object was made of it."""
    consumer = Consumer("g")
    for options in ({"handler": function}, {"handler": print, "order": "key", "key": function}):
        with pytest.raises(
            TypeError, match=r"=<class '.*Made.*'> is a class whose objects are callable; pass an instance of it"
        ):
            consumer.subscribe("T", **options)
    with pytest.raises(TypeError, match="delays=<class"):
        Retry(delays=function)
    consumer.subscribe("T", function(None), order="key", key=str)


@pytest.mark.parametrize("function", REFUSED)
def test_handler_that_does_not_take_one_argument_is_refused(function: Any) -> None:
    consumer = Consumer("g")
    with pytest.raises(TypeError, match=r"handler is called as handler\(message\), but .* does not take these arguments: "):
        consumer.subscribe("T", function)
    with pytest.raises(TypeError, match=r"handler is called as handler\(batch\)"):
        consumer.handler("T", batch_size=8)(function)
    with pytest.raises(TypeError, match=r"key is called as key\(message\)"):
        consumer.subscribe("T", print, order="key", key=function)
    assert not consumer.subscriptions


@pytest.mark.parametrize("function", FIT)
def test_handler_that_may_take_one_argument_is_accepted(function: Any) -> None:
    consumer = Consumer("g", on_assigned=function)
    consumer.subscribe("T", function)
    Retry(delays=function if function != service.waits else None)


class Store:
    def __init__(self, **methods: Any) -> None:
        self.load = self.save = service.waits
        self.__dict__.update(methods)


class WithoutContext(Hook):
    def before_send(self) -> None:  # type: ignore[override]
        """Would fail for each message."""


def nothing() -> Any: ...


def one(argument: object) -> Any: ...


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Retry(delays=nothing), "delays"),  # type: ignore[arg-type]
        (lambda: Consumer("g", allocate=one), "allocate"),  # type: ignore[arg-type]
        (lambda: Consumer("g", on_assigned=nothing), "on_assigned"),  # type: ignore[arg-type]
        (lambda: Consumer("g", on_lost=nothing), "on_lost"),  # type: ignore[arg-type]
        (lambda: Consumer("g", broadcast=Store(load=nothing)), "load"),
        (lambda: Consumer("g", broadcast=Store(save=nothing)), "save"),
        (lambda: Consumer("g", hooks=[WithoutContext()]), "before_send"),
        (lambda: Producer("g", hooks=[WithoutContext()]), "before_send"),
        (lambda: Producer("g", queue_selector=one), "queue_selector"),  # type: ignore[arg-type]
        (lambda: TransactionProducer("g", execute=one, check=one), "execute"),  # type: ignore[arg-type]
        (lambda: TransactionProducer("g", execute=lambda m, a: TransactionStatus.COMMIT, check=nothing), "check"),  # type: ignore[arg-type,misc]
        (lambda: allocate_near_rooms(nothing, one), "room_of_queue"),  # type: ignore[arg-type]
        (lambda: allocate_near_rooms(one, one, one), "inner"),  # type: ignore[arg-type]
        (lambda: Inbox(group="g", key=nothing), "key"),  # type: ignore[arg-type]
    ],
)
def test_function_that_does_not_take_its_arguments_is_refused(make: Callable[[], object], name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} is called as {name}\("):
        make()


def generator(*arguments: object) -> Any:
    yield


async def waits(*arguments: object) -> Any: ...


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(delays=generator),
        lambda: Retry(delays=waits),
        lambda: Consumer("g", allocate=waits),
        lambda: Consumer("g", hooks=[type("Generates", (Hook,), {"before_consume": generator})()]),
        lambda: Consumer("g", hooks=[type("Waits", (Hook,), {"before_consume": waits})()]),
        lambda: Producer("g", queue_selector=generator),
        lambda: allocate_near_rooms(waits, one),  # type: ignore[arg-type]
        lambda: Inbox(group="g", key=waits),  # type: ignore[arg-type]
    ],
)
def test_function_whose_calls_run_nothing_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=r"coroutine function|generator function"):
        make()


def test_execute_that_is_a_generator_function_is_refused() -> None:
    with pytest.raises(TypeError, match="execute must not be a generator function"):
        TransactionProducer("g", execute=generator, check=one)


@pytest.mark.virtual_time
async def test_callbacks_of_sends_that_do_not_take_one_argument_are_refused() -> None:
    """And those that fit are called, also if callbacks of the same kind were checked before."""
    async with EmbeddedRocketMQ(auto_create_topics=True) as server, Producer("p", namesrv=server.namesrv) as producer:
        for function in REFUSED:
            for name in ("on_success", "on_error"):
                with pytest.raises(TypeError, match=rf"{name} is called as {name}\("):
                    await producer.send_async(Message("T", b"x"), **{name: function})
        with pytest.raises(TypeError, match="must be a plain function, not a generator function"):
            await producer.send_async(Message("T", b"x"), on_success=generator)
        for function in FIT:
            if function != service.waits:
                await producer.send_async(Message("T", b"x"), on_success=function)
        results: list[object] = []
        for number in range(3):
            await producer.send_async(Message("T", b"x"), on_success=functools.partial(lambda n, r: results.append(n), number))
            await producer.send_batch_async(
                [Message("T", b"x")], on_success=lambda result, number=number: results.append(number)
            )
        with pytest.raises(TypeError, match="missing a required argument"):
            await producer.send_async(Message("T", b"x"), on_success=functools.partial(lambda n, m, r: None, 1))
        await producer.flush()
        assert results == [0, 0, 1, 1, 2, 2]


def test_message_is_the_only_argument_of_handlers() -> None:
    """The annotation of a handler is of no importance."""
    consumer = Consumer("g")

    @consumer.handler("T")
    def handle(message: MessageExt) -> None: ...

    assert consumer.subscriptions[0].handler is handle
