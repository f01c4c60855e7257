"""Producers of transactions, and scripted brokers that record their ends and ask about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rmq_async import Message, TransactionProducer, TransactionStatus
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.command import RemotingCommand, encode_command
from rmq_protocol.constants import ONEWAY_FLAG, RequestCode, SerializeType
from rmq_protocol.properties import encode_properties
from rmq_protocol.stored import encode_stored

from ...support.fakes import Broker, Cluster, Link
from ..support import until

COMMIT, ROLLBACK, UNKNOWN = TransactionStatus


END = RequestCode.END_TRANSACTION
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


class Ends:
    """The ends of transactions that a scripted broker receives. ``answer(link, command)``: answers those that are not one-way."""

    def __init__(self, broker: Broker) -> None:
        self.received: list[RemotingCommand] = []
        self.links: list[Link] = []
        self.answer: Callable[[Link, RemotingCommand], None] = lambda link, command: link.reply(command)
        broker.answers[END] = self.serve

    def serve(self, link: Link, command: RemotingCommand) -> None:
        self.received.append(command)
        self.links.append(link)
        if not command.is_oneway:
            self.answer(link, command)

    @property
    def fields(self) -> list[dict[str, Any]]:
        return [dict(command.ext_fields or {}) for command in self.received]

    @property
    def said(self) -> list[tuple[str | None, str | None, bool]]:
        """Unique id, outcome and whether it was one-way."""
        return [
            ((command.ext_fields or {}).get("msgId"), (command.ext_fields or {}).get("commitOrRollback"), command.is_oneway)
            for command in self.received
        ]


def question(
    unique_id: str, offset: int = 7, *, group: str = "group", body: bytes = b"half", topic: str = "T", **over: Any
) -> RemotingCommand:
    """A broker's, about a half message at these offsets. ``record``: instead of the message; fields that are None are left out.

    ``born_time_ms``: of the message.
    """
    properties = {"UNIQ_KEY": unique_id, "PGROUP": group, "TRAN_MSG": "true", "REAL_TOPIC": topic}
    record, born = over.pop("record", None), over.pop("born_time_ms", 0)
    if record is None:
        record = encode_stored(
            topic=topic,
            body=body,
            properties=encode_properties(properties),
            queue_offset=offset,
            commit_log_offset=offset * 100,
            born_time_ms=born,
        )
    fields = {
        "topic": HALF_TOPIC,
        "bname": "a",
        "tranStateTableOffset": str(offset),
        "commitLogOffset": str(offset * 100),
        "msgId": unique_id,
        "transactionId": unique_id,
        "offsetMsgId": "00",
        **over,
    }
    ext = {name: value for name, value in fields.items() if value is not None}
    return RemotingCommand(code=RequestCode.CHECK_TRANSACTION_STATE, flag=ONEWAY_FLAG, ext_fields=ext, body=record)


def ask(link: Link, *questions: RemotingCommand) -> None:
    link.write(b"".join(part for each in questions for part in encode_command(each, SerializeType.JSON)))


def each_end(*codes: int) -> Callable[[Link, RemotingCommand], None]:
    left = list(codes)
    return lambda link, command: link.reply(command, left.pop(0))


def sent_status(message: Message, arg: Any) -> Any:
    return arg


def never(*_: object) -> TransactionStatus:
    raise AssertionError("no question was expected")


def transactions(
    servers: Cluster | EmbeddedRocketMQ, check: Callable[..., Any] = never, group: str = "group", **options: Any
) -> TransactionProducer:
    """Not started: use it as ``async with``. ``execute`` gives the status that was sent with the message."""
    return TransactionProducer(group, check=check, namesrv=servers.namesrv, **{"execute": sent_status} | options)


async def link_of(cluster: Cluster) -> Link:
    """The broker's end of the producer's connection; for producers with ``topics``."""
    await until(lambda: cluster.a.codes[RequestCode.HEART_BEAT])
    (link,) = cluster.a.open_links
    return link


class Records:
    """A function for ``execute`` or ``check`` that records its arguments. ``answer``: what it returns or raises."""

    def __init__(self, answer: Any = COMMIT) -> None:
        self.answer = answer
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *given: Any) -> Any:
        self.calls.append(given)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def coroutine(self, *given: Any) -> Any:
        await asyncio.sleep(0)
        return self(*given)


def bodies(server: EmbeddedRocketMQ, topic: str = "T") -> list[bytes]:
    return sorted(message.body for message in server.messages(topic))
