"""A FastAPI service whose probes ask its producer, and which may start before its cluster does.

In production: ``NAMESRV_ADDR=10.0.0.1:9876 uvicorn fastapi_probes:app``, with /livez and /readyz as probes of Kubernetes.
(Needs fastapi.) Run as it is, it asks itself, before, while and after there is a cluster. (Needs httpx too.)
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

import rmq_async
from rmq_async import Message, Producer, ProducerHealth


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Kubernetes kills after terminationGracePeriodSeconds, 30 s: stop_timeout and what else the shutdown does must fit in.
    async with Producer("orders", start_without_cluster=True, stop_timeout=15.0) as producer:
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


def answer(health: ProducerHealth, good: bool) -> JSONResponse:
    problems = [{"code": problem.code, "text": problem.text} for problem in health.problems]
    return JSONResponse({"state": health.state.value, "problems": problems}, 200 if good else 503)


@app.get("/livez")
async def live(request: Request) -> JSONResponse:
    health = request.app.state.producer.health()
    return answer(health, health.live)


@app.get("/readyz")
async def ready(request: Request) -> JSONResponse:
    health = request.app.state.producer.health()
    return answer(health, health.ready)


async def main() -> None:
    import httpx

    from rmq_async.embedded import EmbeddedRocketMQ

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ["NAMESRV_ADDR"] = f"127.0.0.1:{port}"
    service = httpx.ASGITransport(app)
    async with lifespan(app), httpx.AsyncClient(transport=service, base_url="http://service") as client:

        async def show(when: str) -> None:
            alive, able = await client.get("/livez"), await client.get("/readyz")
            codes = ", ".join(problem["code"] for problem in able.json()["problems"])
            print(f"{when}: live {alive.status_code}, ready {able.status_code} {codes}".strip())

        async def until(status: int) -> None:
            async with asyncio.timeout(20):
                while (await client.get("/readyz")).status_code != status:  # noqa: ASYNC110 - as a prober does
                    await asyncio.sleep(0.01)

        await show("no cluster yet")
        sending = asyncio.create_task(app.state.producer.send(Message("OrderTopic", b"order 17"), timeout=20))
        async with EmbeddedRocketMQ(port=port):
            print("sent before the cluster was there:", (await sending).status.name)
            await show("with the cluster")
        await until(503)
        await show("the broker is gone")


if __name__ == "__main__":
    rmq_async.run(main())
