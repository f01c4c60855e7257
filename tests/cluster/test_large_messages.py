"""Messages beyond the frames that servers take as they are delivered; and names that a broker takes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from rmq_async import Admin, Hook, Message, Producer, PullConsumer, SendContext
from rmq_async.testing._config import PROFILES, Profile
from rmq_async.testing.cluster import RealCluster

from .conftest import NO_TIMERS, started

FRAME = 40 * 1024 * 1024
SIZE = 20 * 1024 * 1024


@pytest.fixture(scope="module")
def patient() -> Iterator[RealCluster]:
    """It takes frames of 40 MiB."""
    frames = f"-Dcom.rocketmq.remoting.frameMaxLength={FRAME}"
    keys = {"maxMessageSize": str(FRAME), "flushDiskType": "ASYNC_FLUSH", **NO_TIMERS}
    yield from started(RealCluster(profile=PROFILES["correctness"] | Profile(broker=keys, broker_jvm=(frames,))))


class Watches(Hook):
    """Makes messages take the general way."""

    def before_send(self, context: SendContext) -> None:
        context.properties["seen"] = "yes"


async def test_messages_of_20_mib_arrive(patient: RealCluster) -> None:
    sizes = {"max_message_size": SIZE, "max_frame_size": FRAME, "compress_over": 1 << 30, "timeout": 30.0}
    body = random.Random(7).randbytes(1 << 20) * (SIZE >> 20)
    async with Admin(namesrv=patient.namesrv, request_timeout=10.0) as admin:
        await admin.create_topic("Large", queues=1)
    for options in ({}, {"hooks": [Watches()], "send_smart_msg": False}, {"batching": True}):
        async with Producer("large", namesrv=patient.namesrv, **sizes, **options) as sender:
            await sender.send(Message("Large", body))
    async with PullConsumer("large", namesrv=patient.namesrv, max_frame_size=FRAME, request_timeout=30.0) as consumer:
        assert [message.body == body async for message in consumer.read("Large")] == [True] * 3


async def test_names_that_java_accepts_are_accepted(patient: RealCluster) -> None:
    async with Producer("CLIENT_INNER_PRODUCER", namesrv=patient.namesrv) as sender:
        assert (await sender.send(Message("TBW102", b"x"))).queue.topic == "TBW102"
