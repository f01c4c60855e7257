"""Workers that come and go: each pops messages of one queue, none waits for the others, and a slow job holds only itself.

In production: ``NAMESRV_ADDR=10.0.0.1:9876 python pop_workers.py`` in as many processes as there is work for. Run as it is, five
workers share the one queue of a broker in memory; one of them leaves in between.
"""

import asyncio
import os
from collections import Counter

import rmq_async
from rmq_async import Consumer, Message, MessageExt, Producer

JOBS = 100


class Log:
    """What was done, and by which workers."""

    def __init__(self) -> None:
        self.jobs: Counter[bytes] = Counter()
        self.workers: set[str] = set()
        self.complete = asyncio.Event()

    def add(self, name: str, job: bytes) -> None:
        self.workers.add(name)
        self.jobs[job] += 1
        if len(self.jobs) == JOBS:
            self.complete.set()


def worker(namesrv: str | None, name: str, log: Log) -> Consumer:
    consumer = Consumer("jobs", namesrv=namesrv, instance_name=name, mode="pop", start_from="earliest", concurrency=4)

    @consumer.handler("JobTopic", timeout=60.0)
    async def work(message: MessageExt) -> None:
        await asyncio.sleep(1.0 if message.body == b"job 7" else 0.01)
        log.add(name, message.body)

    return consumer


async def show(namesrv: str) -> None:
    log = Log()
    async with Producer("planners", namesrv=namesrv) as producer:
        queue = (await producer.fetch_publish_queues("JobTopic"))[0]
        await producer.send_batch([Message("JobTopic", b"job %d" % number) for number in range(JOBS)], queue=queue)
    workers = [worker(namesrv, f"worker-{number}", log) for number in range(5)]
    await asyncio.gather(*(each.start() for each in workers))
    await workers[0].wait_settled(5)
    await workers[0].stop()  # what it has not begun goes to the others at once
    await log.complete.wait()
    await asyncio.gather(*(each.stop() for each in workers))
    print(f"{len(log.jobs)} jobs, {len(log.workers)} workers, {sum(log.jobs.values()) - len(log.jobs)} done twice")


async def main() -> None:
    namesrv = os.environ.get("NAMESRV_ADDR")
    if namesrv is not None:
        await worker(namesrv, f"worker-{os.getpid()}", Log()).run()  # until SIGTERM
        return
    from rmq_async.embedded import EmbeddedRocketMQ

    async with EmbeddedRocketMQ() as server:
        await show(server.namesrv)


if __name__ == "__main__":
    rmq_async.run(main())
