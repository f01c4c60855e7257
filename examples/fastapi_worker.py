"""A worker inside a FastAPI service: the lifespan starts and stops a consumer, the probes ask its health.

In production: ``NAMESRV_ADDR=10.0.0.1:9876 uvicorn fastapi_worker:app``, with /livez and /readyz as probes of Kubernetes; each
process is a member of the group. (Needs fastapi.) Run as it is, it asks itself, with a broker in memory. (Needs httpx too.)
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import JSONResponse

import rmq_async
from rmq_async import Consumer, ConsumerHealth, Message, MessageExt, Producer

# Kubernetes kills after terminationGracePeriodSeconds, 30 s: stop_timeout and what else the shutdown does must fit in.
consumer = Consumer("billing", start_from="earliest", stop_timeout=20.0)
billed: list[str] = []


@consumer.handler("OrderTopic", tags="paid", timeout=30.0)
async def bill(message: MessageExt) -> None:
    billed.append(message.body.decode())


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with consumer:
        yield


app = FastAPI(lifespan=lifespan)


def answer(health: ConsumerHealth, good: bool) -> JSONResponse:
    problems = [{"code": problem.code, "text": problem.text} for problem in health.problems]
    return JSONResponse({"live": health.live, "ready": health.ready, "problems": problems}, 200 if good else 503)


@app.get("/livez")
async def live() -> JSONResponse:
    health = consumer.health()
    return answer(health, health.live)


@app.get("/readyz")
async def ready() -> JSONResponse:
    health = consumer.health()
    return answer(health, health.ready)


async def main() -> None:
    import httpx

    from rmq_async.embedded import EmbeddedRocketMQ

    async with EmbeddedRocketMQ() as server, Producer("orders", namesrv=server.namesrv) as producer:
        os.environ["NAMESRV_ADDR"] = server.namesrv
        await producer.send(Message("OrderTopic", b"order 17", tags="paid"))
        service = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=service, base_url="http://service") as client:

            async def show(when: str) -> None:
                alive, able = await client.get("/livez"), await client.get("/readyz")
                codes = ", ".join(problem["code"] for problem in able.json()["problems"])
                print(f"{when}: live {alive.status_code}, ready {able.status_code} {codes}".strip())

            await show("before the start")
            async with lifespan(app):
                await show("running")
                await consumer.wait_settled(1)
                print("billed:", *billed)
            await show("after the stop")


if __name__ == "__main__":
    rmq_async.run(main())
