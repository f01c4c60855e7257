"""A FastAPI service with one producer for the whole process, started and stopped by the lifespan.

In production: ``NAMESRV_ADDR=10.0.0.1:9876 uvicorn fastapi_service:app --workers 4``; each worker then has a producer of its own.
(Needs fastapi.) Run as it is, it asks itself, with a broker in memory. (Needs httpx too.)
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request

import rmq_async
from rmq_async import Message, Producer, RocketMQError


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Producer("orders") as producer:  # at the name servers of $NAMESRV_ADDR
        app.state.producer = producer
        yield


def started_producer(request: Request) -> Producer:
    producer: Producer = request.app.state.producer
    return producer


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}/payment", status_code=201)
async def pay(number: int, producer: Annotated[Producer, Depends(started_producer)]) -> dict[str, str]:
    message = Message("PaymentTopic", f"order {number} paid".encode(), tags="paid", keys=f"order-{number}")
    try:
        result = await producer.send(message, timeout=0.5)
    except RocketMQError as error:
        raise HTTPException(503, f"not confirmed; may be announced all the same: {error.maybe_stored}") from error
    return {"msg_id": result.msg_id}


async def main() -> None:
    import httpx

    from rmq_async.embedded import EmbeddedRocketMQ

    async with EmbeddedRocketMQ() as server:
        os.environ["NAMESRV_ADDR"] = server.namesrv
        service = httpx.ASGITransport(app)
        async with lifespan(app), httpx.AsyncClient(transport=service, base_url="http://service") as client:
            answer = await client.post("/orders/17/payment")
            (stored,) = server.messages("PaymentTopic")
            assert answer.json() == {"msg_id": stored.msg_id}
            print(f"{answer.status_code}: {stored.body.decode()}")

            server.stall()
            answer = await client.post("/orders/18/payment")
            print(f"{answer.status_code}: {answer.json()['detail']}")
            server.resume()


if __name__ == "__main__":
    rmq_async.run(main())
