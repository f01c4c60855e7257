"""Transactions whose broker loses their end, on a connection that stays open, in simulations."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import Message, TransactionProducer, TransactionStatus
from rmq_async.testing.simulation import Simulation

from .support import COMMIT, ROLLBACK

pytestmark = pytest.mark.virtual_time

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


def readable(simulation: Simulation) -> list[str]:
    """Unique ids of the messages that consumers can read."""
    return [each.unique_id for each in simulation.machine("broker-a").stored() if each.topic != HALF_TOPIC]


@pytest.mark.parametrize(("outcome", "stored"), [(COMMIT, 1), (ROLLBACK, 0)])
@pytest.mark.parametrize("after", [10.5, 29.0, 3600.0])
def test_check_asked_again_where_the_broker_has_lost_the_end(outcome: TransactionStatus, stored: int, after: float) -> None:
    """A broker became a replica and the master again, without the newest message, while its connections stayed open."""
    asked: list[str] = []

    def check(message: Any) -> TransactionStatus:
        asked.append(message.msg_id)
        return outcome

    async def main(simulation: Simulation) -> None:
        broker = simulation.machine("broker-a")
        async with TransactionProducer(
            "payments", execute=lambda message, _: outcome, check=check, namesrv=simulation.namesrv
        ) as producer:
            result = await producer.send_in_transaction(Message("Paid", b"17"))
            for _ in range(int(after / 10)):  # else the connection is closed because it is idle
                await asyncio.sleep(after / int(after / 10))
                await producer.send_oneway(Message("Other", b"-"))
            await asyncio.sleep(1.0)
            taken = len(broker.stored()) - 1
            assert broker.truncate(taken) == taken
            assert readable(simulation) == []
            assert broker.stored()[0].unique_id == result.msg_id
            await asyncio.sleep(70.0)
            assert asked == ([result.msg_id] if stored else [])
            assert readable(simulation) == [result.msg_id] * stored

    Simulation(1, brokers=1, faults=None).run(main)
