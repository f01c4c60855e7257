"""A cluster of peers that answer as a test sets them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rmq_async.admin import Admin
from rmq_protocol.command import RemotingCommand

from ..fakes import Broker, Link, NameServer, route


def scripted(broker: Broker, answers: dict[int, Any]) -> None:
    """``answers``: request code -> (code, remark, body) or a function of the request that gives one."""

    def answer(link: Link, request: RemotingCommand) -> None:
        found = answers[request.code]
        code, remark, body = found(request) if callable(found) else found
        link.reply(request, code, remark, body=body)

    broker.answers |= dict.fromkeys(answers, answer)


@asynccontextmanager
async def one_broker(answers: dict[int, Any], **options: Any) -> AsyncIterator[tuple[Broker, Admin]]:
    """Topic "t" on broker-a, which answers as a test sets it."""
    async with Broker() as broker:
        scripted(broker, answers)
        clusters = {"c": {"broker-a": broker.address}}
        async with (
            NameServer(clusters, t=route(broker.address, queues=2)) as server,
            Admin(namesrv=server.address, **({"request_timeout": 1.0} | options)) as admin,
        ):
            yield broker, admin
