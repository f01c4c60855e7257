"""Transactions on the wire: each field of half messages, ends and answers to checks."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_async import Credentials, Message, TransactionStatus, errors
from rmq_async.transport import oneway_control
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import SysFlag
from rmq_protocol.ids import unpack_offset_id

from ...support.fakes import Cluster, each, refuse, stored
from ...support.instances import client_of
from ..support import until
from .support import COMMIT, END, ROLLBACK, UNKNOWN, Ends, ask, link_of, never, question, transactions

pytestmark = pytest.mark.virtual_time


async def test_a_command_that_cannot_be_written_is_reported_and_not_sent(
    cluster: Cluster, loop_errors: list[dict[str, Any]]
) -> None:
    async with transactions(cluster, topics=["T"]) as producer:
        await link_of(cluster)
        connection = (await client_of(producer)).pool.open[cluster.a.address]
        assert not oneway_control.send_control(connection, RemotingCommand(code=END, ext_fields={"msgId": "\ud800"}))
        assert oneway_control.send_control(connection, RemotingCommand(code=END, ext_fields={"msgId": "id"}))
    (reported,) = loop_errors
    assert reported["message"] == f"END_TRANSACTION to {cluster.a.address} could not be sent"
    loop_errors.clear()


@pytest.mark.parametrize("form", ["json", "rocketmq"])
async def test_a_half_message_and_its_end_say_what_brokers_look_for(cluster: Cluster, form: str) -> None:
    ends = Ends(cluster.a)
    async with transactions(cluster, serialize_type=form) as producer:
        for status in TransactionStatus:
            result = await producer.send_in_transaction(Message("T", b"half", tags="A"), status)
            await until(lambda: len(ends.received) == len(cluster.sends))
            sent, (command, fields) = cluster.sends[-1], (ends.received[-1], ends.fields[-1])
            assert sent.properties == {
                "UNIQ_KEY": result.msg_id, "WAIT": "true", "TAGS": "A", "TRAN_MSG": "true", "PGROUP": "group",
            }  # fmt: skip
            assert sent.sys_flag == SysFlag.TRANSACTION_PREPARED
            assert fields == {
                "topic": "T",
                "producerGroup": "group",
                "tranStateTableOffset": str(result.queue_offset),
                "commitLogOffset": str(unpack_offset_id(result.offset_msg_id).offset),
                "commitOrRollback": {COMMIT: "8", ROLLBACK: "12", UNKNOWN: "0"}[status],
                "fromTransactionCheck": "false",
                "msgId": result.msg_id,
                "bname": "a",
            }
            assert (command.is_oneway, command.remark, command.body) == (status is UNKNOWN, None, b"")


async def test_the_broker_gets_the_reason_why_nothing_is_known(cluster: Cluster, loop_errors: list[dict[str, Any]]) -> None:
    """And no more than the type of an error: its words may hold data, and may be had only by raising another."""

    class Fails(Exception):
        def __str__(self) -> str:
            raise KeyError("no words")

    def fails(*_: object) -> TransactionStatus:
        raise Fails

    ends = Ends(cluster.a)
    async with transactions(cluster, fails, execute=fails) as producer:
        await producer.send_in_transaction(Message("T", b"half"))
        (link,) = cluster.a.open_links
        ask(link, question("U1"))
        await until(lambda: len(ends.received) == 2)
    assert [(command.remark, command.is_oneway) for command in ends.received] == [
        ("execute: Fails", True),
        ("check: Fails", True),
    ]
    assert len(loop_errors) == 2
    loop_errors.clear()


async def test_retries_keep_the_id_and_the_end_goes_where_the_message_was_stored(pair: Cluster) -> None:
    ends = {broker.name: Ends(broker) for broker in pair.brokers}
    pair.answer(refuse(1))
    async with transactions(pair, execute=never) as producer:
        with pytest.raises(errors.SendError):
            await producer.send_in_transaction(Message("T", b"half"))
    assert len({sent.unique_id for sent in pair.sends}) == 1
    assert (len(pair.sends), sum(len(each.received) for each in ends.values())) == (3, 0)
    pair.answer(each(refuse(1), stored))
    for broker in pair.brokers:
        broker.sends.clear()
    first = each(refuse(1), stored)
    pair.answer(first)
    async with transactions(pair) as producer:
        result = await producer.send_in_transaction(Message("T", b"half"), COMMIT)
    assert result.attempts == 2
    assert {sent.unique_id for sent in pair.sends} == {result.msg_id}
    assert {name: len(each.received) for name, each in ends.items() if each.received} == {result.queue.broker_name: 1}


async def test_every_request_of_a_transaction_is_signed_and_seen_by_hooks(cluster: Cluster) -> None:
    class Watches:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def before_request(self, address: str, command: RemotingCommand) -> None:
            command.ext_fields = {**(command.ext_fields or {}), "added": "here"}

        def after_request(self, address: str, command: RemotingCommand, response: Any, error: Any) -> None:
            if command.code == END:
                self.seen.append((command.is_oneway, response and response.code, error))

    ends, hook = Ends(cluster.a), Watches()
    async with transactions(
        cluster, lambda _: UNKNOWN, credentials=Credentials("key", "secret"), hooks=[hook], namespace_v2="second"
    ) as producer:
        for status in (COMMIT, UNKNOWN):
            await producer.send_in_transaction(Message("T", b"half"), status)
        ask(cluster.a.open_links[0], question("U1"))
        await until(lambda: len(ends.received) == 3)
    for fields in ends.fields:
        assert (fields["AccessKey"], fields["added"], fields["ns"]) == ("key", "here", "second")
        assert fields["Signature"]
    assert len({fields["Signature"] for fields in ends.fields}) == 3
    assert hook.seen == [(False, 0, None), (True, None, None), (True, None, None)]


async def test_servers_get_names_with_their_namespace(cluster: Cluster) -> None:
    ends = Ends(cluster.a)
    cluster.name_server.routes["ns%T"] = cluster.route()
    async with transactions(cluster, lambda _: COMMIT, namespace="ns") as producer:
        await producer.send_in_transaction(Message("T", b"half"), COMMIT)
        ask(cluster.a.open_links[0], question("U1", group="ns%group", topic="ns%T"))
        await until(lambda: len(ends.received) == 2)
    assert {(fields["topic"], fields["producerGroup"]) for fields in ends.fields} == {("ns%T", "ns%group")}
    assert cluster.sends[0].properties["PGROUP"] == "ns%group"
