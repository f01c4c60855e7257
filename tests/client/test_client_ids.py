"""Ids of clients that do not share connections, in one process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from dataclasses import replace

import pytest

from rmq_async import Consumer, Message, MessageExt, Producer
from rmq_async.client import client_ids
from rmq_async.client.instance import ClientInstance
from rmq_async.config import ClientConfig
from rmq_async.embedded import EmbeddedRocketMQ

from ..support.fakes import NameServer
from .support import client, config_of, fork, until


async def test_clients_with_other_configs_have_other_ids() -> None:
    async with NameServer() as server, client(server) as one:
        assert one.client_id == f"127.0.0.1@{one.config.instance_name}"
        async with client(server, heartbeat_interval=7.0) as two, client(server, unit_name="east") as three:
            assert two.client_id == f"{one.client_id}#2"
            assert three.client_id == f"{one.client_id}@east"
            async with client(server, heartbeat_interval=7.0, unit_name="east") as four:
                assert four.client_id == f"{one.client_id}#2@east"


async def test_an_id_is_free_when_its_client_has_closed() -> None:
    async with NameServer() as server:
        async with client(server) as one:
            pass
        async with client(server, heartbeat_interval=7.0) as two, client(server) as three:
            assert two.client_id == one.client_id
            assert three.client_id == f"{one.client_id}#2"


async def test_clients_on_other_loops_have_other_ids() -> None:
    async with NameServer() as server, client(server) as one:
        ids: list[str] = []

        def run() -> None:
            ids.append(asyncio.run(_id_of(config_of(server))))

        thread = threading.Thread(target=run)
        thread.start()
        await until(lambda: not thread.is_alive())
        assert ids == [f"{one.client_id}#2"]


async def _id_of(config: ClientConfig) -> str:
    instance = await ClientInstance.acquire(config)
    await instance.release()
    return instance.client_id


def test_an_id_is_free_when_its_loop_is_closed() -> None:
    async def take() -> str:
        return client_ids.take("10.0.0.1", "of a closed loop", None)

    assert asyncio.run(take()) == asyncio.run(take()) == "10.0.0.1@of a closed loop"


async def test_a_child_takes_the_ids_of_its_parent() -> None:
    client_id = await _take_forked()
    pid = fork()
    if not pid:
        os._exit(asyncio.run(_take_forked()) != client_id)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    client_ids.give_back(client_id)


async def _take_forked() -> str:
    return client_ids.take("10.0.0.1", "forked", None)


@pytest.mark.virtual_time
async def test_members_with_other_configs_share_the_queues() -> None:
    delivered: Counter[bytes] = Counter()
    async with EmbeddedRocketMQ() as server, Producer("p", namesrv=server.namesrv) as producer:
        await producer.send(Message("T", b"creates four queues"))
        config = ClientConfig(namesrv=server.namesrv)
        members = [Consumer("g", client=each) for each in (config, replace(config, request_timeout=5.0))]
        for member in members:

            @member.handler("T")
            async def count(message: MessageExt) -> None:
                delivered[message.body] += 1

        async with members[0], members[1]:
            await until(lambda: {_count_of_t(member) for member in members} == {2})
            delivered.clear()
            for number in range(40):
                await producer.send(Message("T", b"%d" % number))
            await until(lambda: len(delivered) == 40)
        assert set(delivered.values()) == {1}


def _count_of_t(member: Consumer) -> int:
    return sum(queue.topic == "T" for queue in member.assignment)


@pytest.mark.virtual_time
async def test_replies_go_to_the_client_that_asked() -> None:
    async with EmbeddedRocketMQ() as server:
        async with Producer("p", namesrv=server.namesrv) as producer:
            await producer.send(Message("T", b"creates it"))
        config = ClientConfig(namesrv=server.namesrv)
        one, two = Producer("p1", client=config), Producer("p2", client=replace(config, request_timeout=5.0))
        answering = Consumer("g", client=config)

        @answering.handler("T")
        async def answer(message: MessageExt) -> None:
            await one.reply(message, b"to " + message.body)

        async with one, two, answering:
            for _ in range(2):
                for asking, body in ((one, b"1"), (two, b"2")):
                    assert (await asking.request(Message("T", body), timeout=2.0)).body == b"to " + body
