"""What a consumer that pops takes and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_async import ConfigError, Consumer, ConsumerConfig, MessageExt
from rmq_async.consumer.pop.pop_member import version_name
from rmq_async.consumer.strategies import allocate_by_circle


async def handler(message: MessageExt) -> None:
    """Never called here."""


def nothing(queues: object) -> None:
    """Takes queues."""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_span": 5}, "max_span=5 requires mode='pull'"),
        ({"out_of_range": "latest"}, "out_of_range='latest' requires mode='pull'"),
        ({"commit_interval": 2.0}, "commit_interval=2.0 requires mode='pull'"),
        ({"rebalance_interval": 2.0}, "rebalance_interval"),
        ({"allocate": allocate_by_circle}, "allocate"),
        ({"on_assigned": nothing}, "on_assigned"),
        ({"on_lost": nothing}, "on_lost"),
        ({"pull_size": 33}, "pull_size=33 is above 32"),
        ({"invisible_time": 0.5}, "invisible_time must be 1 to 7200 seconds, not 0.5"),
        ({"invisible_time": 10.0, "max_lease": 5.0}, r"max_lease must be at least invisible_time \(10.0 s\), not 5.0"),
        ({"topics": "T"}, "mode='pop' requires handlers"),
    ],
)
def test_pop_refuses_what_would_do_nothing(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Consumer("g", mode="pop", **options)


@pytest.mark.parametrize("name", ["invisible_time", "max_lease"])
def test_pull_refuses_settings_of_pop(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=10.0 requires mode='pop'"):
        ConsumerConfig(**{name: 10.0})


@pytest.mark.parametrize("order", ["key", "queue"])
def test_pop_refuses_order(order: Any) -> None:
    consumer = Consumer("g", mode="pop")
    with pytest.raises(ConfigError, match=f"order='{order}' requires mode='pull'"):
        consumer.subscribe("T", handler, order=order)


@pytest.mark.parametrize(
    ("number", "name"), [(477, "5.3.2"), (407, "4.9.7"), (413, "5.0.0"), (513, "5.5.0"), (453, "5.2.0"), (100, "before 4.0.0")]
)
def test_version_name(number: int, name: str) -> None:
    assert version_name(number) == name
