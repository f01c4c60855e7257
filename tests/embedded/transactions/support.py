"""Half messages, their ends, and the checks of an embedded broker."""

from __future__ import annotations

from typing import NamedTuple

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.transactions import HALF_TOPIC
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from rmq_protocol.ids import unpack_offset_id
from rmq_protocol.message import MessageExt
from rmq_protocol.stored import decode_messages

from ...support.fakes import UNIQUE_ID, RawClient
from ..inside import broker_of

END = RequestCode.END_TRANSACTION


UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12


ADDED = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
HALF = {"UNIQ_KEY": UNIQUE_ID, "TRAN_MSG": "true", "PGROUP": "PG", "WAIT": "true", "TAGS": "A"}
NOT_FOUND = "Find prepared transaction message failed"


async def beat(client: RawClient, client_id: str, group: str = "PG") -> None:
    data = HeartbeatData(client_id, (ProducerData(group),))
    assert (await client.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(data))).code == 0


async def put_half(
    broker: RawClient, topic: str = "T", body: bytes = b"half", *, queue: int = 0, **over: str
) -> dict[str, str]:
    """Returns the fields of its END_TRANSACTION, but for what became of it."""
    reply = await broker.send(topic, body, queue=queue, f="4", properties={**HALF, **over})
    assert reply.code == 0, reply
    ext = reply.ext_fields or {}
    return end_fields(ext["queueOffset"] or "", str(unpack_offset_id(ext["msgId"] or "").offset))


def end_fields(offset: str, position: str) -> dict[str, str]:
    return {"producerGroup": "PG", "tranStateTableOffset": offset, "commitLogOffset": position, "msgId": UNIQUE_ID}


async def end(broker: RawClient, half: dict[str, str], state: int, **over: str) -> RemotingCommand:
    return await broker.ask(END, {**half, "commitOrRollback": str(state), **over})


def answer_to(check: RemotingCommand) -> dict[str, str]:
    ext = check.ext_fields or {}
    return {**end_fields(ext["tranStateTableOffset"] or "", ext["commitLogOffset"] or ""), "fromTransactionCheck": "true"}


def checked(check: RemotingCommand) -> MessageExt:
    assert (check.code, check.is_oneway) == (39, True)
    (message,) = decode_messages(check.body).messages
    return message


async def checks(client: RawClient) -> list[RemotingCommand]:
    """Those that the broker has sent by now."""
    await client.offset(RequestCode.GET_MAX_OFFSET, HALF_TOPIC)
    found, client.pushed = client.pushed, []
    return found


class HalfQueue(NamedTuple):
    """Offsets of the queue of half messages. ``open``: of the first transaction without an end. ``ended``: a byte for each offset
    from there on, as far as any has ended.
    """

    first: int
    last: int
    open: int
    ended: bytes


def half_queue(server: EmbeddedRocketMQ) -> HalfQueue:
    state = broker_of(server)._transactions
    queue = state._queue
    return HalfQueue(queue.min_offset, queue.max_offset, state._open, bytes(state._ended))
