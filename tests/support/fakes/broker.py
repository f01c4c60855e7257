"""Brokers that do as a test sets them: what they are sent they keep, and answer as ``answer(link, sent)`` says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rmq_protocol.batch import BatchRecord, decode_batch
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import (
    PullMessageRequestHeader,
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    from_ext,
    send_header_v2,
    to_ext,
)
from rmq_protocol.heartbeat import HeartbeatData, decode_heartbeat
from rmq_protocol.json_body import encode_body
from rmq_protocol.message import MessageQueue
from rmq_protocol.properties import decode_properties, properties_text
from rmq_protocol.topics import TopicConfigAndQueueMapping

from .answers import Answer, stored
from .name_server import NameServer
from .peer import Link, Peer

SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
OnPull = Callable[[PullMessageRequestHeader], tuple[int, int, bytes]]


@dataclass(frozen=True, eq=False)
class Sent:
    """One send as a broker reads it."""

    broker: Broker
    command: RemotingCommand

    @property
    def body(self) -> bytes:
        return self.command.body

    @property
    def code(self) -> int:
        return self.command.code

    @property
    def opaque(self) -> int:
        return self.command.opaque

    @property
    def oneway(self) -> bool:
        return self.command.is_oneway

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The header under its names of one letter, whichever form it came in, and further fields that came with it."""
        ext = self.command.ext_fields or {}
        if self.code == RequestCode.SEND_MESSAGE:
            ext = {**ext, **to_ext(send_header_v2(from_ext(SendMessageRequestHeader, ext)))}
        return ext

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.fields["b"], self.fields["n"], int(self.fields["e"]))

    @property
    def sys_flag(self) -> int:
        return int(self.fields["f"])

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.fields["i"])

    @property
    def unique_id(self) -> str:
        return self.properties["UNIQ_KEY"]

    @property
    def batch(self) -> list[BatchRecord]:
        return decode_batch(self.body)

    @property
    def bodies(self) -> list[bytes]:
        """Of the messages that it carries."""
        return [record.body for record in self.batch] if self.code == RequestCode.SEND_BATCH_MESSAGE else [self.body]


class Broker(Peer):
    """Answers heartbeats, farewells and all else that is no send with success, and keeps them; ``silent``: it does not."""

    def __init__(self, name: str = "broker-a", answer: Answer = stored) -> None:
        super().__init__(answer)
        self.name = name
        self.answers |= dict.fromkeys(SENDS, self.take_send)
        self.sends: list[Sent] = []
        self.times: list[float] = []
        """When each of ``sends`` was read, by the loop's clock."""
        self.stored = 0
        self.beats: list[HeartbeatData] = []
        self.farewells: list[dict[str, str | None]] = []
        self.silent = False

    def take_send(self, link: Link, request: RemotingCommand) -> None:
        sent = Sent(self, request)
        self.sends.append(sent)
        self.times.append(asyncio.get_running_loop().time())
        if not sent.oneway:
            self.answer(link, sent)

    def serve_other(self, link: Link, request: RemotingCommand) -> None:
        if request.code == RequestCode.HEART_BEAT:
            self.beats.append(decode_heartbeat(request.body))
        elif request.code == RequestCode.UNREGISTER_CLIENT:
            self.farewells.append(request.ext_fields or {})
        if not self.silent and not request.is_oneway:
            link.reply(request)

    def stored_fields(self, sent: Any) -> dict[str, str | None]:
        """extFields of a good answer; a batch gets as many offset ids as it has messages."""
        count = len(sent.batch) if sent.code == RequestCode.SEND_BATCH_MESSAGE else 1
        ids = [f"{self.port:016X}{self.stored + index:016X}" for index in range(count)]
        self.stored += count
        return {
            "msgId": ",".join(ids),
            "queueId": sent.fields["e"],
            "queueOffset": str(self.stored - count),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }

    @property
    def bodies(self) -> list[bytes]:
        return [sent.body for sent in self.sends]

    @property
    def unregistered(self) -> list[str | None]:
        """Groups of producers that have said farewell."""
        return [fields.get("producerGroup") for fields in self.farewells]


class PullBroker(Broker):
    """Answers pulls by ``on_pull(header) -> (code, next offset, body)`` with offsets ``low`` and ``high``.

    ``settings``: the topic's.
    """

    name_server: NameServer

    def __init__(self, on_pull: OnPull | None = None, *, topic: str = "t") -> None:
        super().__init__()
        self.on_pull = on_pull
        self.low = 0
        self.high = 100
        self.settings = TopicConfigAndQueueMapping(topic)
        self.pulls: list[PullMessageRequestHeader] = []
        self.answers |= {
            RequestCode.GET_EARLIEST_MSG_STORETIME: lambda link, request: link.reply(request, ext_fields={"timestamp": "-1"}),
            RequestCode.GET_MAX_OFFSET: lambda link, request: link.reply(request, ext_fields={"offset": str(self.high)}),
            RequestCode.GET_MIN_OFFSET: lambda link, request: link.reply(request, ext_fields={"offset": str(self.low)}),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda link, request: link.reply(
                request, ext_fields={"offset": str(self.high)}
            ),
            RequestCode.GET_TOPIC_CONFIG: self.show_settings,
        }
        if on_pull is not None:
            self.answers[RequestCode.PULL_MESSAGE] = self.answer_pull

    @property
    def settings_asked(self) -> int:
        return self.codes[RequestCode.GET_TOPIC_CONFIG]

    def show_settings(self, link: Link, request: RemotingCommand) -> None:
        link.reply(request, body=encode_body(self.settings, standard=False))

    def answer_pull(self, link: Link, request: RemotingCommand) -> None:
        header = from_ext(PullMessageRequestHeader, request.ext_fields)
        self.pulls.append(header)
        assert self.on_pull is not None
        code, after, body = self.on_pull(header)
        offsets = {"nextBeginOffset": str(after), "minOffset": str(self.low), "maxOffset": str(self.high)}
        link.reply(request, code, "said the script", {"suggestWhichBrokerId": "0", **offsets}, body)


def push(link: Link, sent: Sent, **over: Any) -> None:
    """The reply to a request, as its broker pushes it."""
    properties = {"CORRELATION_ID": sent.properties["CORRELATION_ID"], "UNIQ_KEY": "reply"}
    fields: dict[str, Any] = {
        "producerGroup": "replier", "topic": "c_REPLY_TOPIC", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
        "sysFlag": 0, "bornTimestamp": 1, "flag": 7, "properties": properties_text(properties), "bornHost": "no host",
        "storeHost": "127.0.0.1:10911", "storeTimestamp": 2, "body": b"reply",
    }  # fmt: skip
    fields |= over
    body = fields.pop("body")
    ext = {**to_ext(ReplyMessageRequestHeader(**fields))}
    link.ask(RemotingCommand(code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, opaque=77, ext_fields=ext, body=body))
