"""The client instances behind producers, consumers and admins: as one more user of one gets it, and those that are registered."""

from __future__ import annotations

from typing import Any

from rmq_async import Admin, Producer, PullConsumer
from rmq_async.client import instance as registry
from rmq_async.client.instance import ClientInstance

__all__ = ["client_of", "registered"]


async def client_of(user: Producer | PullConsumer | Admin) -> ClientInstance:
    """The instance that a started ``user`` shares with all of equal settings: acquires it, and gives it back at once."""
    client = await ClientInstance.acquire(user.client_config if isinstance(user, Producer) else user.config)
    await client.release()
    assert client.users, f"{user!r} is not started: {client!r} had no user before this call"
    return client


def registered() -> dict[Any, ClientInstance]:
    """Instances that a user with equal settings would join, by generation, loop and settings."""
    return dict(registry._instances)  # noqa: SLF001
