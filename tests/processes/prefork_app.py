"""The service that test_prefork.py runs under uvicorn and gunicorn, and what may go wrong in one.

Each worker makes a producer of group "own" in its lifespan, and starts there another one, of group "made", that the module
made when it was imported. With PREFORK_PARENT=1 the module also starts one, of group "parent", in a thread with a loop of its own:
where a parent loads the application before it forks, that one sends while workers come and go, and the workers find it in
their memory. All that happens is reported in messages.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from rmq_async import Message, Producer, RocketMQError

NAMESRV = os.environ["PREFORK_NAMESRV"]
made = Producer("made", namesrv=NAMESRV)
inherited: Producer | None = None


async def parent(started: threading.Event) -> None:
    global inherited
    async with Producer("parent", namesrv=NAMESRV) as producer:
        await producer.send(Message("Parent", b"attempts 1"))
        inherited = producer
        started.set()
        attempts = 1
        while True:
            result = await producer.send(Message("Parent", b"attempts %d" % attempts))
            attempts = result.attempts
            await asyncio.sleep(0.005)


if os.environ.get("PREFORK_PARENT"):
    started = threading.Event()
    threading.Thread(target=lambda: asyncio.run(parent(started)), daemon=True).start()
    if not started.wait(60):
        raise RuntimeError("the parent's producer did not start")


async def outcome_of_the_inherited() -> str:
    if inherited is None:
        return "none"
    calls = [inherited.send(Message("Parent", b"child")), inherited.send_oneway(Message("Parent", b"child")), inherited.stop()]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    return " ".join(sorted({type(outcome).__name__ for outcome in outcomes}))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    global inherited
    outcome = await outcome_of_the_inherited()
    inherited = None
    async with Producer("own", namesrv=NAMESRV) as producer, made:
        app.state.producer = producer
        await made.send(Message("Workers", f"{os.getpid()} {os.getppid()} {outcome}".encode()))
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}")
async def announce(number: int) -> dict[str, int | str]:
    producer: Producer = app.state.producer
    try:
        result = await producer.send(Message("Orders", b"%d" % number), timeout=60)
        reply = await made.request(Message("Questions", b"%d" % number), timeout=60)
    except RocketMQError as error:
        raise HTTPException(503, repr(error)) from error
    return {"pid": os.getpid(), "msg_id": result.msg_id, "attempts": result.attempts, "answer": reply.body.decode()}
