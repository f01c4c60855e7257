"""One conversation of raw pops, for any broker: what it answers, as lines in which names and times are alike for all brokers.

The official broker serves the queues of a pop in an order that it draws, so what is of several queues is sorted.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from rmq_protocol.bodies import SubscriptionGroupConfig, decode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from .support import PopClient, Popped, taken

__all__ = ["Dialogue"]

POP, ACK, BATCH_ACK, CHANGE = (
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)
KEPT = ("1ST_POP_TIME", "ORIGIN_GROUP", "POP_CK", "TAGS", "KEYS", "UNIQ_KEY")
LEEWAY_MS = 500


class Dialogue:
    """``name``: of this run, in all topics and groups. ``lines``: what was answered."""

    def __init__(self, client: PopClient, name: str) -> None:
        self.client = client
        self.name = name
        self.lines: list[str] = []
        client.group = f"G-{name}"

    def topic(self, number: int) -> str:
        return f"T{number}-{self.name}"

    async def run(self) -> list[str]:
        parts: list[Callable[[], Awaitable[None]]] = [
            self.refusals, self.answers, self.acks, self.filters, self.order, self.priorities, self.modes,
        ]  # fmt: skip
        for part in parts:
            self.lines.append(f"-- {part.__name__}")
            await part()
        return [line.replace(self.name, "NAME") for line in self.lines]

    # -- what is said

    def say(self, what: str, response: RemotingCommand) -> list[Popped]:
        """Adds an answer, with the messages of a pop."""
        fields = dict(response.ext_fields or {})
        popped = taken(response) if response.body and "msgOffsetInfo" in fields else []
        now = int(time.time() * 1000)
        pop_time = int(fields.get("popTime") or 0)
        if pop_time:
            fields["popTime"] = "now" if abs(now - pop_time) < 60_000 else f"{now - pop_time} ms ago"
        if 0 <= int(fields.get("reviveQid") or 0) < 8 and pop_time:
            fields["reviveQid"] = "0-7"
        for name in ("startOffsetInfo", "msgOffsetInfo", "orderCountInfo"):
            if fields.get(name):
                fields[name] = ";".join(sorted((fields[name] or "").split(";")))
        remark = (response.remark or "").replace(self.client.local, "CLIENT").split("\n")[0]
        self.lines.append(f"{what}: {response.code} {remark!r} {json.dumps(fields, sort_keys=True)}")
        self.lines += sorted(self._shown(each, pop_time) for each in popped)
        return popped

    def _shown(self, popped: Popped, pop_time: int, *, place: bool = True) -> str:
        message = popped.message
        properties = {name: message.properties[name] for name in KEPT if name in message.properties}
        if "1ST_POP_TIME" in properties:
            properties["1ST_POP_TIME"] = "before" if int(properties["1ST_POP_TIME"]) < pop_time else "not before"
        if "POP_CK" in properties:
            parts = properties["POP_CK"].split(" ")
            same = (int(parts[1]) == pop_time, 0 <= int(parts[3]) < 8)
            own = [parts[0], *parts[7:]] if place else ["-"]
            properties["POP_CK"] = " ".join([*own, str(same), parts[2], *parts[4:7]])
        handle = popped.handle._replace(pop_time=0, revive_qid=0)
        where = f"{message.queue_offset} {handle!r}" if place else "-"
        return (
            f"   {message.body!r} {message.topic} {message.queue.queue_id} tries={message.reconsume_times} "
            f"flags={message.sys_flag} {properties} {where}"
        )

    async def send(self, topic: str, *texts: str, queue: int = 0, tags: str | None = None) -> None:
        for text in texts:
            properties = {"UNIQ_KEY": f"{text}", "KEYS": "key", **({} if tags is None else {"TAGS": tags})}
            response = await self.client.send(topic, text.encode(), queue=queue, properties=properties)
            assert response.code == 0, response
        end = int((response.ext_fields or {}).get("queueOffset") or 0) + 1
        async with asyncio.timeout(60):  # a broker enters what it has stored into its queues a moment later
            while await self.client.offset(RequestCode.GET_MAX_OFFSET, topic, queue) < end:
                await asyncio.sleep(0.01)

    async def pop(self, what: str, topic: str, **over: object) -> list[Popped]:
        return self.say(what, await self.client.pop(topic, **over))

    async def waited(self, what: str, topic: str, number: int, **over: object) -> list[Popped]:
        """Pops, held, until so many messages have come; says them together, without their offsets and the answers' fields."""
        found: list[Popped] = []
        lines: list[str] = []
        end = time.monotonic() + 9
        while len(found) < number and time.monotonic() < end:
            now = int(time.time() * 1000)
            response = await self.client.pop(topic, pollTime=1000, bornTime=now, **over)
            times = int((response.ext_fields or {}).get("popTime") or 0)
            popped = taken(response) if response.code == 0 else []
            found += popped
            lines += [f"{what}: {self._shown(each, times, place=False)}" for each in popped]
        self.lines += [*sorted(lines), f"{what}: {len(found)} messages"]
        return sorted(found, key=lambda each: each.body)

    # -- its parts

    async def refusals(self) -> None:
        topic, now = self.topic(0), int(time.time() * 1000)
        await self.client.create_topic(topic, 2)
        await self.client.create_topic(self.topic(1), 2, perm="2")
        await self.pop("no such topic", "no-such-topic-" + self.name)
        await self.pop("33 messages", topic, maxMsgNums=33)
        await self.pop("no such queue", topic, queueId=2)
        await self.pop("sent long ago", topic, bornTime=now - 5000, pollTime=1000)
        await self.pop("not readable", self.topic(1))
        await self.pop("broken condition", topic, exp="a >", expType="SQL92")
        await self.pop("broken tags", topic, exp="||", expType="TAG")
        await self.pop("no numbers", topic, maxMsgNums=None, invisibleTime=None, pollTime=None, bornTime=None, queueId=None)
        began = time.monotonic()
        await self.pop("held", topic, pollTime=400, bornTime=int(time.time() * 1000))
        waited = time.monotonic() - began
        self.lines.append(f"held for 350 ms: {0.25 <= waited <= 0.35 + LEEWAY_MS / 1000 or waited}")

    async def answers(self) -> None:
        topic = self.topic(2)
        await self.client.create_topic(topic, 2)
        for queue in (0, 1):
            await self.send(topic, f"a{queue}", f"b{queue}", f"c{queue}", queue=queue)
        await self.pop("one queue, two messages", topic, queueId=0, maxMsgNums=2)
        await self.pop("all queues", topic)
        await self.pop("nothing left", topic)
        opaque = self.client.write(POP, self.client.pop_fields(topic, pollTime=5000, bornTime=int(time.time() * 1000)))
        async with PopClient(self.client.address) as other:
            await asyncio.sleep(0.2)
            response = await other.send(topic, b"late", queue=1, properties={"UNIQ_KEY": "late"})
            assert response.code == 0
        response = await self.client.read()
        assert response.opaque == opaque
        self.say("held, then sent", response)
        await self.pop("other group, mode 1", topic, initMode=1, consumerGroup=f"H-{self.name}")

    async def acks(self) -> None:
        client, topic = self.client, self.topic(3)
        await client.create_topic(topic, 1)
        await self.send(topic, *"abcdefgh")
        popped = {each.body: each for each in await self.pop("eight", topic, invisibleTime=1000)}
        a, b, c, d, e, f = (popped[text] for text in (b"a", b"b", b"c", b"d", b"e", b"f"))
        self.say("ack", await client.ack(topic, a))
        self.say("ack again", await client.ack(topic, a))
        self.say("batch ack", await client.ack_batch(topic, [b, c]))
        self.say("ack beyond the end", await client.ack(topic, a, offset=99))
        self.say("ack at the end", await client.ack(topic, a, offset=8))
        self.say("ack of no queue", await client.ack(topic, a, queueId=1))
        self.say("ack of no topic", await client.ack(topic, a, topic="no-such-topic-" + self.name))
        self.say("empty batch ack", await client.ask(BATCH_ACK, None, b'{"brokerName":"broker-a","acks":[]}'))
        self.say("batch ack without a body", await client.ask(BATCH_ACK, None))
        self.say("batch ack of no topic", await client.ack_batch("no-such-topic-" + self.name, [a]))
        self.say("change beyond the end", await client.change(topic, a, 1000, offset=8))
        self.say("change of no queue", await client.change(topic, a, 1000, queueId=1))
        self.say("change of no topic", await client.change(topic, a, 1000, topic="no-such-topic-" + self.name))
        self.say("change", await client.change(topic, d, 500))
        later = await client.changed(topic, e, 20_000)
        self.say("ack of the new handle", await client.ack(topic, later))
        gone = await client.changed(topic, f, 700, suspend="true")
        self.say("ack of the old handle", await client.ack(topic, f))
        await client.ack(topic, popped[b"g"])
        self.say("change after an ack", await client.change(topic, popped[b"g"], 600))
        assert gone.handle != f.handle
        back = await self.waited("back", topic, 4, invisibleTime=30_000)
        for each in back:
            self.lines.append(f"ack of {each.body!r}: {(await client.ack(topic, each)).code}")
        await self.pop("the end", topic)

    async def filters(self) -> None:
        topic = self.topic(4)
        await self.client.create_topic(topic, 1)
        for number in range(3):
            await self.send(topic, f"a{number}", tags="a")
            await self.send(topic, f"b{number}", tags="b")
        await self.pop("tag b", topic, exp="b", expType="TAG")
        await self.pop("tag a", topic, exp="a", expType="TAG")
        await self.pop("another group, tag a without a type", topic, exp="a", consumerGroup=f"H-{self.name}")
        condition = {"exp": "TAGS = 'b'", "expType": "SQL92", "consumerGroup": f"I-{self.name}"}
        await self.pop("a condition", topic, **condition)

    async def order(self) -> None:
        client, topic = self.client, self.topic(5)
        await client.create_topic(topic, 1)
        await self.send(topic, *"abcde")
        group = {"consumerGroup": client.group, "order": "true"}
        first = await self.pop("three in order", topic, maxMsgNums=3, invisibleTime=1500, attemptId="1", **group)
        await self.pop("blocked", topic, attemptId="2", **group)
        await asyncio.sleep(0.01)  # another pop has another time
        again = await self.pop("same attempt", topic, maxMsgNums=3, invisibleTime=1500, attemptId="1", **group)
        self.say("ack of the first answer", await client.ack(topic, first[0]))
        self.say("ack of the second message", await client.ack(topic, again[1]))
        self.say("ack of another one", await client.ack(topic, again[0], offset=4))
        await self.pop("still blocked", topic, attemptId="3", **group)
        await asyncio.sleep(1.6)
        repeated = await self.pop("visible again", topic, attemptId="4", invisibleTime=20_000, **group)
        self.say("batch ack", await client.ack_batch(topic, repeated))
        await self.pop("all done", topic, attemptId="5", **group)
        self.say("old ack", await client.ack(topic, repeated[0]))

    async def priorities(self) -> None:
        topic = self.topic(6)
        await self.client.create_topic(topic, 4, attributes="+message.type=PRIORITY")
        await self.client.create_topic(self.topic(7), 4)
        for name in (topic, self.topic(7)):
            answered: list[str] = []
            for number, text in enumerate(["0", "3", "1", "9", "2", "-1", "+2", " 2", "99999999999", "x", ""]):
                properties = {"UNIQ_KEY": f"p{number}", "_SYS_MSG_PRIORITY_": text}
                response = await self.client.send(name, text.encode() or b"none", queue=1, properties=properties)
                answered.append(f"{text}: {response.code} {(response.ext_fields or {}).get('queueId')}")
            self.lines.append(f"queues of priorities: {answered}")
        await self.send(topic, "plain 2", queue=2)
        await self.send(topic, "plain 0", queue=0)
        for _ in range(6):
            await self.pop("two of the highest", topic, maxMsgNums=2)

    async def modes(self) -> None:
        client, topic = self.client, self.topic(2)

        async def assigned(strategy: str = "AVG") -> None:
            body = {"clientId": "c", "consumerGroup": client.group, "messageModel": "CLUSTERING", "strategyName": strategy}
            response = await client.ask(RequestCode.QUERY_ASSIGNMENT, None, json.dumps({**body, "topic": topic}).encode())
            self.lines.append(f"assignment: {response.code} {response.body.decode()}")

        async def mode(what: str, name: str, **over: object) -> None:
            body = {"topic": name, "consumerGroup": client.group, "mode": "POP", "popShareQueueNum": 0, **over}
            self.say(what, await client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, json.dumps(body).encode()))

        await assigned()
        await mode("mode", topic)
        await mode("mode of a retry topic", "%RETRY%" + client.group)
        await mode("mode of no topic", "no-such-topic-" + self.name)
        response = await client.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        found = json.loads(response.body)["messageRequestModeMap"]
        self.lines.append(f"modes: {response.code} {json.dumps(found.get(topic), sort_keys=True)}")
        config = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": client.group})
        assert decode_body(SubscriptionGroupConfig, config.body).group_name == client.group
