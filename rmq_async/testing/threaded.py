"""The embedded broker in a thread with its own event loop, for synchronous code and for tests with other event loops.

    with ThreadedRocketMQ() as server:
        ...  # any client at server.namesrv
        server.fail_next(2)

For every public method and property of ``EmbeddedRocketMQ``, this class has a method or property that calls it in the server's
thread and returns its result. Coroutine methods stay coroutine methods, which can be awaited on any loop. All of these are
generated from ``EmbeddedRocketMQ``, so a new method of that class needs no change here.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from rmq_async._threads import start_thread
from rmq_async.embedded import EmbeddedRocketMQ

T = TypeVar("T")


class ThreadedRocketMQ(EmbeddedRocketMQ):
    """An EmbeddedRocketMQ that runs in a separate thread. It takes the same parameters.

    A ``with`` block starts the thread and the servers, and ends both. Outside the block, every method and property raises
    RuntimeError. Inside the block, ``await stop()`` and ``await start()`` restart the servers.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("the server is already running; leave its `with` block first")
        ready: Future[None] = Future()
        self._thread = start_thread(self._run, "rmq_async embedded", ready)
        try:
            ready.result()
        except BaseException:
            self._join()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
        self._join()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the server's loop and block until it ends. Return its result or raise its exception.

        Raises:
            RuntimeError: Outside the ``with`` block, and in the server's own thread, which would wait for itself.
        """
        return self._submit(coroutine).result()

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        loop = self._loop
        if loop is None or threading.current_thread() is self._thread:
            coroutine.close()
            if loop is None:
                raise RuntimeError("the server is not running; call it inside its `with` block")
            raise RuntimeError("run() in the server's own thread would wait for itself; await the coroutine there")
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def _run(self, ready: Future[None]) -> None:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(self._serve(ready))

    async def _serve(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        try:
            await super().start()
        except Exception as error:  # noqa: BLE001 - raised by __enter__
            self._loop = None
            ready.set_exception(error)
            return
        ready.set_result(None)
        await self._ended.wait()
        self._loop = None
        await super().stop()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
        self._thread = None


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(self: ThreadedRocketMQ, *args: Any, **options: Any) -> Any:
        async def call() -> Any:
            return function(self, *args, **options)

        return function(self, *args, **options) if threading.current_thread() is self._thread else self.run(call())

    return method


def _awaited(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(function)
    async def method(self: ThreadedRocketMQ, *args: Any, **options: Any) -> Any:
        if threading.current_thread() is self._thread:
            return await function(self, *args, **options)
        return await asyncio.wrap_future(self._submit(function(self, *args, **options)))

    return method


def _replace(name: str) -> None:
    member = inspect.getattr_static(EmbeddedRocketMQ, name)
    if isinstance(member, property) and member.fget is not None:
        setattr(ThreadedRocketMQ, name, property(_plain(member.fget), doc=member.__doc__))
    elif inspect.iscoroutinefunction(member):
        setattr(ThreadedRocketMQ, name, _awaited(member))
    elif inspect.isfunction(member):
        setattr(ThreadedRocketMQ, name, _plain(member))


for _name in dir(EmbeddedRocketMQ):
    if not _name.startswith("_"):
        _replace(_name)
