"""``rmq group``: groups as people and programs see them, and nothing that is done without a question."""

from __future__ import annotations

import asyncio
import os
import pty
import signal

from rmq_async import Admin, Consumer, DeadLetter, Message, MessageExt, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import SysFlag

from ..support.fakes import RawClient
from .support import START, Rmq, environment, one_line


def served(server: EmbeddedRocketMQ, group: str, *bodies: bytes) -> None:
    """Sends messages to the topic of a group's name, and handles them as that group; "bad" ones are dead-lettered."""

    async def main() -> None:
        async with Admin(namesrv=server.namesrv) as admin, Producer("p", namesrv=server.namesrv) as producer:
            await admin.create_topic(group, queues=1, broker="broker-a")
            for body in bodies:
                await producer.send(Message(group, body, keys="k"))
        consumer = Consumer(group, namesrv=server.namesrv, start_from="earliest")

        @consumer.handler(group)
        async def handle(message: MessageExt) -> None:
            if message.body == b"bad":
                raise DeadLetter("bad")

        async with consumer:
            await consumer.wait_settled(len(bodies))

    asyncio.run(main())


def test_a_group_from_creation_to_deletion(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    for command in (["dead-letters", "billing"], ["resend", "billing", "--yes"]):
        ended = rmq_here("group", *command)
        assert (ended.code, ended.out) == (1, "")
        assert "there is no group billing; check the name" in one_line(ended.err)
    made = {"group": "billing", "retries": 3, "retry_queues": 4}
    assert rmq_here("group", "create", "billing", "--retries", "3", "--retry-queues", "4", "--json").records == [made]
    assert rmq_here("group", "create", "billing", "--retries", "3") == (0, "billing is created\n", "")
    ended = rmq_here("group", "create", "billing", "--retries", "2147483648")
    assert (ended.code, "2147483648 is not in the range" in one_line(ended.err)) == (2, True)
    assert "billing" in rmq_here("group", "list").out.splitlines()
    assert "TOOLS_CONSUMER" not in rmq_here("group", "list").out
    assert "TOOLS_CONSUMER" in rmq_here("group", "list", "--system").out
    served(server, "billing", b"1", b"bad", b"3")

    heading, *rows, total = rmq_here("group", "lag", "billing").out.splitlines()
    assert heading.split() == ["topic", "queue", "committed", "end", "lag", "inflight", "last"]
    assert rows[0].split()[:6] == ["billing", "broker-a:0", "3", "3", "0", "0"]
    assert total == "0 messages and 0 retries to go"
    first, *_ = rmq_here("group", "lag", "billing", "--topic", "billing", "--json").records
    assert (first["committed"], first["end"], first["lag"], first["retry"]) == (3, 3, 0, False)

    dead = rmq_here("group", "dead-letters", "billing", "--json").records
    assert [each["body"] for each in dead] == ["bad"]
    assert one_line(rmq_here("group", "dead-letters", "billing").out).endswith(" keys=k of=billing")
    assert rmq_here("group", "resend", "billing", "--yes") == (0, "1 sent again\n", "")
    assert rmq_here("group", "resend", "billing", "--yes", "--json").records == [{"group": "billing", "sent": 0}]
    ended = rmq_here("group", "dead-letters", "billing")
    assert (ended.code, ended.out) == (0, "")
    assert one_line(ended.err) == "rmq: group billing has no dead letters that were not sent again"

    ended = rmq_here("group", "members", "billing")
    assert (ended.code, ended.out) == (1, "")
    assert "no consumer of group billing is connected" in one_line(ended.err)
    assert rmq_here("group", "delete", "billing", "--yes") == (0, "billing is deleted\n", "")
    assert "billing" not in rmq_here("group", "list").out.splitlines()


def test_resend_passes_over_letters_of_a_deleted_topic(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    served(server, "gone", b"bad")
    assert rmq_here("topic", "delete", "gone").code == 0
    ended = rmq_here("group", "resend", "gone", "--yes")
    assert (ended.code, ended.out) == (1, "")
    assert one_line(ended.err).endswith("to skip the letters of topic gone, give skip_topics (rmq group resend --skip-topic)")
    ended = rmq_here("group", "resend", "gone", "--yes", "--skip-topic", "other", "--skip-topic", "gone")
    assert (ended.code, ended.out) == (0, "0 sent again\n")
    assert one_line(ended.err) == (
        "rmq: group gone: 1 dead letters were skipped because of skip_topics; they stay in the dead-letter topic"
    )
    assert rmq_here("group", "dead-letters", "gone").out == ""
    ended = rmq_here("group", "resend", "gone", "--yes", "--skip-topic", "a b")
    assert (ended.code, "a b" in one_line(ended.err)) == (1, True)


def test_resend_passes_over_a_damaged_letter(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    served(server, "torn", b"bad")

    async def damage() -> None:
        async with RawClient(server.brokers["broker-a"]) as client:
            properties = {"RETRY_TOPIC": "torn"}
            sent = await client.send("%DLQ%torn", b"no zlib", properties=properties, f=str(int(SysFlag.COMPRESSED)))
            assert sent.code == 0

    asyncio.run(damage())
    ended = rmq_here("group", "resend", "torn", "--yes")
    assert (ended.code, ended.out) == (1, "")
    assert one_line(ended.err).endswith("to skip damaged letters, give skip_damaged=True (rmq group resend --skip-damaged)")
    ended = rmq_here("group", "resend", "torn", "--yes", "--skip-damaged")
    assert (ended.code, ended.out) == (0, "0 sent again\n")
    letter, total = ended.err.splitlines()
    assert letter.startswith("rmq: group torn: the dead letter at offset 1 of queue 0 on broker broker-a is damaged")
    assert total.endswith("1 dead letters were skipped because of skip_damaged; they stay in the dead-letter topic")
    assert rmq_here("group", "resend", "torn", "--yes", "--skip-damaged") == (0, "0 sent again\n", "")


def test_reset_shows_offsets_before_and_after(server: EmbeddedRocketMQ, rmq_here: Rmq) -> None:
    served(server, "moved", b"1", b"2", b"3")
    arguments = ("group", "reset", "moved", "moved", "--to")
    ended = rmq_here(*arguments, "earliest", "--dry-run")
    assert [line.split() for line in ended.out.splitlines()] == [
        ["topic", "queue", "before", "after", "verified"],
        ["moved", "broker-a:0", "3", "0"],
        ["Nothing", "was", "done."],
    ]
    ended = rmq_here(*arguments, "earliest")
    assert (ended.code, ended.err) == (
        2,
        "rmq group reset: Reset the offsets of group moved? There is no terminal to ask on: give --yes "
        "(see rmq group reset --help)\n",
    )
    assert rmq_here("group", "lag", "moved", "--json").records[0]["committed"] == 3
    (change,) = rmq_here(*arguments, "earliest", "--yes", "--json").records
    assert change == {
        "topic": "moved", "broker": "broker-a", "queue_id": 0, "before": 3, "after": 0, "verified": True,
    }  # fmt: skip
    assert rmq_here(*arguments, "2", "--yes").out.splitlines()[-1].split()[-3:] == ["0", "2", "yes"]
    assert rmq_here(*arguments, "2020-01-01T00:00:00Z", "--yes", "--json").records[0]["after"] == 0
    ended = rmq_here(*arguments, "yesterday", "--yes")
    assert ended.code == 2
    assert "'yesterday' is not one of" in one_line(ended.err)

    assert rmq_here("group", "create", "copied").code == 0
    (copy,) = rmq_here("group", "clone", "moved", "copied", "moved", "--yes", "--json").records
    assert (copy["before"], copy["after"], copy["verified"]) == (None, 0, True)


def test_reset_on_a_terminal_asks(server: EmbeddedRocketMQ) -> None:
    served(server, "asked", b"1", b"2")

    async def answered(answer: bytes | None) -> tuple[int, str]:
        theirs, ours = pty.openpty()
        try:
            command = [*START, "group", "reset", "asked", "asked", "--to", "earliest", "--namesrv", server.namesrv]
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=ours,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment(),
            )
            assert process.stderr is not None
            asked = await asyncio.wait_for(process.stderr.readuntil(b"[y/N]:"), 60)
            assert b"Reset the offsets of group asked?" in asked
            ending = asyncio.create_task(process.communicate())
            if answer is not None:
                os.write(theirs, answer)
            for _ in range(6):
                if answer is None:  # again: the interpreter may miss one between the question and the read
                    process.send_signal(signal.SIGINT)
                await asyncio.wait([ending], timeout=5.0)  # a second one while the interpreter ends would kill it
                if ending.done():
                    break
            out, err = ending.result()
            assert (b"interrupted" in err) is (answer != b"y\n")
            return process.returncode or 0, out.decode()
        finally:
            os.close(theirs)
            os.close(ours)

    for answer in (b"n\n", None):
        code, out = asyncio.run(answered(answer))
        assert (code, len(out.splitlines())) == (130, 2)
    code, out = asyncio.run(answered(b"y\n"))
    assert (code, out.splitlines()[-1].split()[-3:]) == (0, ["2", "0", "yes"])
