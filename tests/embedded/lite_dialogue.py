"""One conversation of raw requests about lite topics, for any broker: what it answers, as lines in which names and times are alike
for all brokers. It takes a few seconds on any broker, so it has no part that waits for minutes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from rmq_protocol.bodies import ConsumeStats, SubscriptionGroupConfig, decode_body
from rmq_protocol.constants import RequestCode
from rmq_protocol.lite import LiteAction, OffsetOption, OffsetType

from .lite_client import BROKER, FIRST, LAST, NONE, LiteClient, Popped, taken
from .lite_talk import LiteTalk


class LiteDialogue(LiteTalk):
    async def run(self) -> list[str]:
        parts: list[Callable[[], Awaitable[None]]] = [
            self.attributes, self.refusals, self.storing, self.order, self.starts, self.changes, self.exclusive, self.events,
            self.members, self.information,
        ]  # fmt: skip
        for number, part in enumerate(parts):
            self.lines.append(f"-- {part.__name__}")
            self.client.topic, self.client.group = f"T{number}-{self.name}", f"G{number}-{self.name}"
            self.client.client_id = f"one{number}-{self.name}"
            await part()
        return [line.replace(self.name, "NAME") for line in self.lines]

    # -- its parts

    async def attributes(self) -> None:
        client = self.client
        for text in (
            "+message.type=LITE,+lite.topic.expiration=60",
            "+lite.topic.expiration=-2",
            "+lite.topic.expiration=43201",
            "+lite.topic.expiration=x",
            "-lite.topic.expiration",
            "+nope=1",
        ):
            self.say(f"topic {text}", await client.create_topic(client.topic, 1, attributes=text))
        for key, value in (
            ("+lite.bind.topic", client.topic),
            ("+lite.sub.model", "Exclusive"),
            ("+lite.sub.model", "None"),
            ("+lite.sub.reset.offset.exclusive", "true"),
            ("+lite.sub.reset.offset.unsubscribe", "maybe"),
            ("+lite.sub.client.quota", "-2"),
            ("+lite.sub.client.max.event.cnt", "9"),
            ("+lite.sub.client.max.event.cnt", "10"),
            ("lite.sub.model", "Shared"),
            ("-lite.sub.model", ""),
            ("-lite.sub.model", ""),
            ("+nope", "1"),
        ):
            config = SubscriptionGroupConfig(client.group, attributes={key: value})
            self.say(f"group {key}={value}", await client.put_group(config))
        response = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": client.group})
        self.lines.append(f"{sorted(json.loads(response.body)['attributes'].items())}")
        config = SubscriptionGroupConfig("N" + client.group, attributes={"-lite.sub.model": ""})
        self.say("new group without a model", await client.put_group(config))

    async def refusals(self) -> None:
        client, now = self.client, int(time.time() * 1000)
        await client.prepare()
        await self.pop("no such topic", topic="none-" + self.name)
        await client.create_topic("W" + self.name, 1, perm="2", attributes="+message.type=LITE")
        await self.pop("not readable", topic="W" + self.name)
        await client.create_topic("N" + self.name, 1)
        await self.pop("not lite", topic="N" + self.name)
        await self.pop("bound to another topic", consumerGroup="other-" + self.name)
        await client.put_group(SubscriptionGroupConfig("off-" + self.name, consume_enable=False))
        await self.pop("may not consume", consumerGroup="off-" + self.name)
        await self.pop("33 messages", maxMsgNum=33)
        await self.pop("sent long ago", bornTime=now - 5000, pollTime=1000)
        await self.pop("nothing")
        await self.pop("held", pollTime=300)
        code = RequestCode.LITE_SUBSCRIPTION_CTL
        self.say("no body", await client.ask(code, None))
        self.say("no changes", await client.ask(code, None, b'{"subscriptionSet":[]}'))
        await self.control("blank client", LiteAction.ADD, "a", client_id=" ")
        client.group = "off-" + self.name
        for action in LiteAction:
            await self.control(f"may not consume, {action}", action, "a")
        client.group = "other-" + self.name
        await self.control("not bound", LiteAction.ADD, "a")

    async def storing(self) -> None:
        client = self.client
        await client.prepare(queues=2)
        await self.stored("a", "a0")
        await self.stored("b", "b0", queue=1)
        await self.stored("a", "a1", queue=1)
        lmq = f"%LMQ%${client.topic}$a"
        for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.GET_EARLIEST_MSG_STORETIME):
            response = await client.ask(code, {"topic": lmq, "queueId": "0"})
            fields = response.ext_fields or {}
            self.lines.append(f"{code.name}: {response.code} {fields.get('offset')}")
        for timestamp in (0, int(time.time() * 1000) + 10_000):
            for lite_topic, queue in (("a", 0), ("a", 1), ("none", 0)):
                await self.ask(
                    f"search {lite_topic} {queue}", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic=client.topic, queueId=queue,
                    timestamp=timestamp, liteTopic=lite_topic,
                )  # fmt: skip
        for queue, offset in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0)):
            pulled = await client.pull(client.topic, queue, offset, liteTopic="a", sysFlag="0" if queue else "4")
            self.say(f"pull {queue} {offset}", pulled)
        self.lines.append(f"found {bool((await client.pull(client.topic, 0, 0, liteTopic='a')).body)}")
        for queue in (0, 1):
            self.say(f"pull of the parent {queue}", await client.pull(client.topic, queue, 0))
        await client.create_topic("N" + self.name, 1)
        client.topic = "N" + self.name
        await client.stored("a", "x")
        await asyncio.sleep(0.3)
        name = f"%LMQ%$N{self.name}$a"
        self.lines.append(f"in a topic of another type: {await client.offset(RequestCode.GET_MAX_OFFSET, name)}")

    async def order(self) -> None:
        client = self.client
        await client.prepare()
        await self.stored("a", "a0", "a1", "a2")
        await self.stored("b", "b0")
        for name in ("a", "b"):  # a broker that has just started dispatches two names of one request in any order
            await client.subscribe(name)
            await asyncio.sleep(0.1)
        a0, a1 = await self.pop("two", maxMsgNum=2, invisibleTime=3000)
        (b0,) = await self.pop("the other queue", invisibleTime=60_000)
        await self.pop("all blocked")
        await self.ack("the later one", a1)
        await self.pop("still blocked")
        await self.ack("its ack again", a1)
        await self.ack("beyond", a0, offset=4)
        await self.ack("at the end", a0, offset=3)
        await self.ack("not taken", a0, offset=2)
        await self.ack("of queue 1", a0, queueId=1)
        await self.ack("of no topic", a0, topic="none-" + self.name)
        await self.ack("of another group", a0, consumerGroup="other-" + self.name)
        await self.ack("unpopped lite topic", a0, liteTopic="none", offset=0)
        await self.ack("the first one", a0)
        await self.ack("the first one again", a0)
        (a2,) = await self.waited("the next", invisibleTime=800)
        (again,) = await self.waited("redelivered", invisibleTime=800)
        await self.ack("the old handle", a2)
        await self.stored("a", "a3")
        both = await self.waited("redelivered with a new one", invisibleTime=60_000)
        await self.ack("an older handle", again)
        for each in both:
            await self.ack("of both", each)
        await self.stored("a", "a4")
        await self.pop("an attempt", attemptId="x", invisibleTime=60_000)
        await self.stored("a", "a5")
        await self.pop("the attempt again", attemptId="x", invisibleTime=60_000)
        await self.ack("the last", b0)
        await self.ask(
            "offset", RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=client.group, topic=f"%LMQ%${client.topic}$a", queueId=0
        )
        await self.control("remove", LiteAction.REMOVE, "a", "none")
        await self.stored("a", "a6")
        await self.pop("after the removal")

    async def starts(self) -> None:
        client = self.client
        await client.prepare()
        options = {
            "first": FIRST, "last": LAST, "policy 0": NONE, "offset": OffsetOption(OffsetType.OFFSET, 1),
            "beyond": OffsetOption(OffsetType.OFFSET, 9), "negative": OffsetOption(OffsetType.OFFSET, -1),
            "tail": OffsetOption(OffsetType.TAIL_N, 1), "time": OffsetOption(OffsetType.TIMESTAMP, 0),
        }  # fmt: skip
        for number, (what, option) in enumerate(options.items()):
            name = f"l{number}"
            await self.stored(name, "0", "1", "2")
            await client.subscribe(name, option=option)
            await asyncio.sleep(0.1)
            popped = await self.pop(what, invisibleTime=60_000)
            for each in popped:
                await client.acked(each)
            await self.stored(name, "3")
            more = await self.pop(f"{what}, then", invisibleTime=60_000)
            for each in more:
                await client.acked(each)
            await client.control(LiteAction.REMOVE, name)
        await client.subscribe("l0", option=OffsetOption(OffsetType.TAIL_N, 2))
        await asyncio.sleep(0.1)
        await self.pop("tail of a group with an offset", invisibleTime=60_000)
        await client.subscribe("l0", option=FIRST)
        await self.pop("subscribed again, which is no new subscription")
        await client.control(LiteAction.REMOVE, "l0")
        await client.subscribe("l0")
        await asyncio.sleep(0.1)
        await self.pop("the reset unblocks", invisibleTime=60_000)

    async def changes(self) -> None:
        client = self.client
        await client.prepare()
        await self.stored("a", "a0", "a1")
        await client.subscribe("a")
        await asyncio.sleep(0.1)
        first, second = await self.pop("two", invisibleTime=60_000)
        for what, over in {
            "beyond": {"offset": 3}, "at the end": {"offset": 2}, "no topic": {"topic": "none-" + self.name},
            "queue 1": {"queueId": 1},
        }.items():  # fmt: skip
            self.say(f"change {what}", await client.change(first, 1000, **over))
        await client.change(first, 600)
        await self.pop("one is visible, one is not")
        await client.change(second, 900)
        popped = await self.waited("both are visible", invisibleTime=60_000)
        await client.change(popped[0], 500, suspend="true")
        popped = await self.waited("suspended", invisibleTime=60_000)
        await client.acked(popped[0])
        await client.change(popped[1], 500, suspend="true")
        popped = await self.waited("one is suspended", invisibleTime=60_000)
        await client.acked(*popped)
        response = await client.change(popped[0], 500)
        self.say("change of an acknowledged one", response)

    async def events(self) -> None:
        """More lite topics than a client has events: the last comes with a full dispatch, 10 to 20 s later."""
        client = self.client
        await client.prepare()
        names = [f"l{number}" for number in range(101)]
        for name in names:
            await client.stored(name, name)
        async with asyncio.timeout(30):
            while not await client.offset(RequestCode.GET_MAX_OFFSET, f"%LMQ%${client.topic}${names[-1]}"):
                await asyncio.sleep(0.01)
        await client.subscribe(*names)
        await asyncio.sleep(0.3)
        began = time.monotonic()
        got: list[Popped] = []
        counts = []
        for _ in range(5):
            popped = taken(await client.pop(bornTime=int(time.time() * 1000), invisibleTime=60_000))
            counts.append(len(popped))
            got += popped
        await client.acked(*got)
        await client.pop(bornTime=int(time.time() * 1000))  # acks have dispatched their queues again
        popped = []
        while not popped and time.monotonic() - began < 30:
            popped = taken(await client.pop(bornTime=int(time.time() * 1000), pollTime=3000, invisibleTime=60_000))
        late = 9 < time.monotonic() - began < 22
        self.lines.append(f"{counts} {len({each.body for each in [*got, *popped]})} late: {late}")

    async def exclusive(self) -> None:
        client = self.client
        await client.prepare(lite_sub_model="Exclusive", lite_sub_reset_offset_exclusive="true")
        await self.stored("a", "a0", "a1")
        await client.subscribe("a", "b")
        await asyncio.sleep(0.1)
        (a0,) = await self.pop("one", maxMsgNum=1, invisibleTime=60_000)
        await self.ack("one", a0)
        async with LiteClient(client.address) as other:
            other.topic, other.group, other.client_id = client.topic, client.group, "two-" + self.name
            await other.subscribe("a")
            await self.notice("evicted")
            await asyncio.sleep(0.1)
            self.say_popped("the new owner", await other.pop(bornTime=int(time.time() * 1000), invisibleTime=60_000))
        self.lines.append(f"subscribers {sorted(await client.subscribers('a'))} {sorted(await client.subscribers('b'))}")
        await client.subscribe("b")
        await self.notice("subscribed twice")
        self.lines.append(f"subscribers {sorted(await client.subscribers('b'))}")
        await self.ask(
            "client", RequestCode.GET_LITE_CLIENT_INFO, parentTopic=client.topic, group=client.group, clientId=client.client_id
        )
        await self.control("complete", LiteAction.SET, "a", "b", "c")
        await asyncio.sleep(0.1)
        self.lines.append(f"subscribers {sorted(await client.subscribers('a'))} notices {len(client.pushed)}")
        await self.control("complete without a", LiteAction.SET, "b")
        self.lines.append(f"subscribers {sorted(await client.subscribers('a'))} {sorted(await client.subscribers('b'))}")
        await self.control("clear", LiteAction.CLEAR)
        self.lines.append(f"subscribers {sorted(await client.subscribers('b'))}")

    async def notice(self, what: str) -> None:
        try:
            request = await self.client.request(timeout=1.0)
        except TimeoutError:
            self.lines.append(f"{what}: no notice")
        else:
            fields = json.dumps(self._plain(dict(request.ext_fields or {})), sort_keys=True)
            self.lines.append(f"{what}: {request.code} {request.is_oneway} {fields}")

    async def members(self) -> None:
        """Subscriptions stay when the client's connection ends, and when it leaves its group."""
        client = self.client
        await client.prepare()
        await self.stored("a", "a0")
        for how in ("without a heartbeat", "with a heartbeat", "unregistered"):
            async with LiteClient(client.address) as other:
                other.topic, other.group, other.client_id = client.topic, client.group, f"two-{self.name}"
                if how != "without a heartbeat":
                    self.client = other
                    await self.beat()
                    self.client = client
                await other.subscribe("a", "b")
                if how == "unregistered":
                    fields = {"clientID": other.client_id, "consumerGroup": other.group}
                    assert (await other.ask(RequestCode.UNREGISTER_CLIENT, fields)).code == 0
                    await asyncio.sleep(0.2)
                    self.lines.append(f"after the request: {sorted(await client.subscribers('a'))}")
            await asyncio.sleep(0.5)
            self.lines.append(f"{how}: {sorted(await client.subscribers('a'))} {sorted(await client.subscribers('b'))}")
            self.client = client
            await client.control(LiteAction.CLEAR, client_id=f"two-{self.name}")

    async def information(self) -> None:
        client = self.client
        await client.prepare(expiration=30, queues=2)
        await self.stored("a", "a0", "a1")
        await self.stored("b", "b0")
        await client.subscribe("a", "c")
        await asyncio.sleep(0.1)
        (popped,) = await self.pop("one", maxMsgNum=1, invisibleTime=60_000)
        await client.acked(popped)
        await client.create_topic("N" + self.name, 1)
        none = "none-" + self.name
        for topic in (client.topic, none, "N" + self.name):
            response = await client.ask(RequestCode.GET_PARENT_TOPIC_INFO, {"topic": topic})
            self.say("topic", response)
            if response.body:
                info = json.loads(response.body)
                info.pop("lmqNum")
                self.lines.append(f"   {json.dumps(self._plain(info), sort_keys=True)}")
        for topic, lite_topic in ((client.topic, "a"), (client.topic, "c"), (none, "a"), ("N" + self.name, "a")):
            await self.ask("lite topic", RequestCode.GET_LITE_TOPIC_INFO, parentTopic=topic, liteTopic=lite_topic)
        for fields in (
            {}, {"maxCount": 1}, {"clientId": "none"}, {"parentTopic": none}, {"group": none}, {"parentTopic": "N" + self.name},
        ):  # fmt: skip
            every = {"parentTopic": client.topic, "group": client.group, "clientId": client.client_id, **fields}
            response = await client.ask(RequestCode.GET_LITE_CLIENT_INFO, every)  # type: ignore[arg-type]
            self.say(f"client {sorted(fields)}", response)
            if response.body:
                info = json.loads(response.body)
                info["liteTopicSet"] = len(info.get("liteTopicSet") or ())
                self.lines.append(f"   {json.dumps(self._plain(info), sort_keys=True)}")
        for group, lite_topic, top in ((client.group, "a", 0), (client.group, "b", 0), (client.group, "c", 0), (none, "a", 0)):
            await self.ask("group", RequestCode.GET_LITE_GROUP_INFO, group=group, liteTopic=lite_topic, topK=top)
        await self.ask("group", RequestCode.GET_LITE_GROUP_INFO, group=client.group, topK=5)
        for topic in (None, f"%LMQ%${client.topic}$a"):
            asked = {"consumerGroup": client.group, **({} if topic is None else {"topic": topic})}
            table = decode_body(ConsumeStats, (await client.ask(RequestCode.GET_CONSUME_STATS, asked)).body).offset_table
            rows = sorted(
                (queue.topic, queue.queue_id, each.broker_offset, each.consumer_offset) for queue, each in table.items()
            )
            self.lines.append(f"lag in {topic}: {rows}")
        for lite_topic, offset in (("a", 1), ("a", 2), ("none", 0), ("none", 1)):
            name = f"%LMQ%${client.topic}${lite_topic}"
            self.say(f"pull of {lite_topic}", await client.pull(name, 0, offset))
            fields = {"consumerGroup": client.group, "topic": name, "queueId": "0", "commitOffset": "1"}
            self.say(f"commit of {lite_topic}", await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
        self.say("pull of queue 1", await client.pull(f"%LMQ%${client.topic}$a", 1, 0))
        for fields in ({"clientId": client.client_id}, {"clientId": "none"}, {}, {"group": none}):
            await self.ask("dispatch", RequestCode.TRIGGER_LITE_DISPATCH, **{"group": client.group, **fields})
        response = await client.ask(RequestCode.GET_BROKER_LITE_INFO)
        self.say("broker", response)
        info = json.loads(response.body)
        self.lines.append(f"   {sorted(info)} {info['maxLmqNum']} {info['storeType']}")
        self.lines.append(f"   {info['topicMeta'][client.topic]} {info['groupMeta'][client.topic]} {BROKER}")
