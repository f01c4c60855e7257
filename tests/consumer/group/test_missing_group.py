"""A start in a group that its brokers do not have and may not create."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_async import Admin, Consumer, MessageExt
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import SubscriptionGroupNotExistError

from .support import create

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("start_from", ["latest", "earliest"])
@pytest.mark.parametrize("options", [{}, {"mode": "pop"}, {"broadcast": True}, {"topics": "T"}], ids=str)
async def test_member_of_a_missing_group_does_not_start(options: dict[str, Any], start_from: Any) -> None:
    async with EmbeddedRocketMQ(brokers=2, auto_create_groups=False) as server:
        await create(server.namesrv)
        member = Consumer("g", namesrv=server.namesrv, start_from=start_from, **options)
        if "topics" not in options:

            @member.handler("T")
            async def handle(message: MessageExt) -> None:
                """Takes it."""

        with pytest.raises(
            SubscriptionGroupNotExistError, match="group g does not exist, and the broker does not create it; create it"
        ):
            await member.start()
        assert "group g does not exist" in member.health().problems[0].text
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_group("g")
        async with member:
            assert member.health().ready
            assert not member.health().problems
