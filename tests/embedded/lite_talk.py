"""What a dialogue about lite topics says: responses and messages, as lines that are alike for all brokers."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, MessageModel, SubscriptionData, encode_heartbeat
from rmq_protocol.lite import LiteAction

from .lite_client import LiteClient, Popped, taken

TIMES = ("popTime", "lastUpdateTimestamp", "lastAccessTime", "earliestUnconsumedTimestamp", "lastTimestamp")


class LiteTalk:
    """``name``: of this run, in all topics and groups. ``lines``: what was answered."""

    def __init__(self, client: LiteClient, name: str) -> None:
        self.client = client
        self.name = name
        self.lines: list[str] = []

    def say(self, what: str, response: RemotingCommand) -> None:
        fields = self._plain(dict(response.ext_fields or {}))
        remark = (response.remark or "").replace(self.client.local, "CLIENT").split("\n")[0]
        remark = re.sub(r", org\.apache\..*|value is not in set: .*|not set any response code", "", remark)
        self.lines.append(f"{what}: {response.code} {remark!r} {json.dumps(fields, sort_keys=True)}")

    def _plain(self, value: Any) -> Any:
        """The value without what differs from run to run."""
        now = int(time.time() * 1000)
        if isinstance(value, dict):
            shown = {name: self._plain(each) for name, each in value.items() if each is not None}
            for name in set(shown) & set(TIMES):
                if abs(now - int(shown[name])) < 600_000:
                    shown[name] = "now"
            if "invisibleTime" in shown:  # of a change, it counts from the pop
                shown["invisibleTime"] = int(shown["invisibleTime"]) // 100
            return shown
        if isinstance(value, list):
            return sorted((self._plain(each) for each in value), key=str)
        return value

    def say_popped(self, what: str, response: RemotingCommand) -> list[Popped]:
        self.say(what, response)
        popped = taken(response) if response.body else []
        for each in popped:
            properties = each.message.properties
            shown = {name: properties[name] for name in sorted(properties) if name.startswith(("INNER", "__LITE", "POP_CK"))}
            self.lines.append(f"   {each.body!r} {each.message.queue.queue_id} tries={each.message.reconsume_times} {shown}")
        return popped

    async def stored(self, lite_topic: str, *texts: str, queue: int = 0) -> None:
        """Sends messages, and waits until they are dispatched."""
        client = self.client
        end = int((await client.topic_details(lite_topic)).topic_offset.max_offset) + len(texts)  # type: ignore[union-attr]
        await client.stored(lite_topic, *texts, queue=queue)
        async with asyncio.timeout(30):
            while (await client.topic_details(lite_topic)).topic_offset.max_offset < end:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)

    async def pop(self, what: str, **over: object) -> list[Popped]:
        now = int(time.time() * 1000)
        return self.say_popped(what, await self.client.pop(**{"bornTime": now, **over}))

    async def waited(self, what: str, **over: object) -> list[Popped]:
        """Pops, held, until a message comes."""
        return await self.pop(what, **{"pollTime": 8000, **over})

    async def ack(self, what: str, popped: Popped, **over: object) -> None:
        self.say(what, await self.client.ack(popped, **over))

    async def ask(self, what: str, code: int, **fields: object) -> None:
        """Says a response with its body as JSON."""
        response = await self.client.ask(code, {name: str(value) for name, value in fields.items()})
        self.say(what, response)
        if response.body:
            self.lines.append(f"   {json.dumps(self._plain(json.loads(response.body)), sort_keys=True)}")

    async def control(self, what: str, action: LiteAction, *names: str, **over: Any) -> None:
        self.say(what, await self.client.control(action, *names, **over))

    async def beat(self) -> None:
        """Registers the client as a member of its group."""
        client = self.client
        consumer = ConsumerData(
            client.group, "CONSUME_POP", MessageModel.CLUSTERING, "CONSUME_FROM_LAST_OFFSET",
            (SubscriptionData(client.topic, "*", sub_version=1),),
        )  # fmt: skip
        body = encode_heartbeat(HeartbeatData(client.client_id, consumer_data_set=(consumer,)))
        assert (await client.ask(RequestCode.HEART_BEAT, None, body)).code == 0
