"""The brokers of a simulation agree which of them serves a lite topic: each asks a name server for the route."""

from __future__ import annotations

import asyncio

from rmq_async import Admin
from rmq_async.testing.simulation import Simulation
from rmq_protocol.java_types import string_hash
from rmq_protocol.lite import consistent_hash

from ...embedded.lite_client import LiteClient, bodies

NAMES = [f"l{number}" for number in range(20)]


async def sharing(simulation: Simulation) -> tuple[list[str], list[bytes]]:
    """Returns the brokers that say that they serve a name, one after the other, and what a subscriber there got."""
    async with Admin(namesrv=simulation.namesrv) as admin:
        await admin.create_topic("T", queues=2, attributes={"message.type": "LITE"})
        table = (await admin.cluster_info()).broker_addr_table
    await asyncio.sleep(35)  # the next registrations
    found, got = ["?"] * len(NAMES), list[bytes]()
    for name in sorted(table):
        async with LiteClient(table[name].broker_addrs[0]) as client:
            await client.create_group("G", lite_bind_topic="T")
            await client.subscribe(*NAMES)
            for at, lite_topic in enumerate(NAMES):
                if (await client.topic_details(lite_topic)).sharding_to_broker:
                    found[at] = name
                    await client.stored(lite_topic, lite_topic)
            got += bodies(await client.popped())
    return found, got


def test_brokers_share_the_names_as_the_route_says() -> None:
    simulation = Simulation(1, brokers=2, faults=None)
    found, got = simulation.run(sharing)
    queues = ["broker-a", "broker-a", "broker-b", "broker-b"]
    assert found == [queues[consistent_hash(string_hash(name), 4)] for name in NAMES]
    assert sorted(got) == sorted(name.encode() for name in NAMES)
