"""A raw client: streams, the codec's frames and commands, and nothing that retries, pools or guesses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rmq_protocol.command import RemotingCommand, decode_command, encode_command, make_response
from rmq_protocol.constants import ONEWAY_FLAG, RequestCode, SerializeType
from rmq_protocol.frame import Frame, FrameDecoder
from rmq_protocol.properties import properties_text

UNIQUE_ID = "7F0000010A1B2C3D4E5F001122330000"


class RawClient:
    """One connection. ``last_frame``: the last one as it came. ``pushed``: requests of the server that ``ask`` met on its way."""

    def __init__(self, address: str, *, serialize_type: SerializeType = SerializeType.JSON) -> None:
        self.address = address
        self.serialize_type = serialize_type
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.last_frame: Frame | None = None
        self.pushed: list[RemotingCommand] = []
        self.decoder = FrameDecoder()
        self.ready: list[Frame] = []
        self.opaques = itertools.count(1)

    async def __aenter__(self) -> Self:
        host, _, port = self.address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host.strip("[]"), int(port))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):  # the server may have been first
            await self.writer.wait_closed()

    @property
    def local(self) -> str:
        name = self.writer.get_extra_info("sockname")
        return f"{name[0]}:{name[1]}"

    def write(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, flag: int = 0, version: int = 513
    ) -> int:
        """Sends a request and returns its opaque."""
        opaque = next(self.opaques)
        command = RemotingCommand(
            code=code, opaque=opaque, flag=flag, ext_fields=None if ext is None else dict(ext), body=body, version=version
        )
        self.writer.writelines(encode_command(command, self.serialize_type))
        return opaque

    async def read(self, timeout: float = 60.0) -> RemotingCommand:
        """The next frame. Raises EOFError where the server has closed."""
        while not self.ready:
            data = await asyncio.wait_for(self.reader.read(65536), timeout)
            if not data:
                raise EOFError("the server has closed the connection")
            self.ready = self.decoder.feed(data)
        self.last_frame = self.ready.pop(0)
        return decode_command(self.last_frame)

    async def ask(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", **options: Any) -> RemotingCommand:
        """Sends a request and reads its response, which must be the next frame but for requests of the server."""
        opaque = self.write(code, ext, body, **options)
        response = await self.read()
        while not response.is_response:
            self.pushed.append(response)
            response = await self.read()
        assert response.opaque == opaque
        return response

    async def request(self, timeout: float = 60.0) -> RemotingCommand:
        """The next request of the server."""
        if self.pushed:
            return self.pushed.pop(0)
        command = await self.read(timeout)
        assert not command.is_response
        return command

    def answer(
        self,
        request: RemotingCommand,
        code: int = 0,
        remark: str | None = None,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        response = make_response(request, code, remark, None if ext is None else dict(ext), body)
        self.writer.writelines(encode_command(response, self.serialize_type))

    async def create_topic(self, topic: str, queues: int = 4, **over: str) -> RemotingCommand:
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        return await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**ext, **over})

    async def send(self, topic: str, body: bytes = b"hello", *, code: int = 310, flag: int = 0, **over: Any) -> RemotingCommand:
        return await self.ask(code, send_fields(topic, **over), body, flag=flag)

    async def pull(self, topic: str, queue_id: int = 0, offset: int = 0, *, code: int = 11, **over: str) -> RemotingCommand:
        return await self.ask(code, pull_fields(topic, queue_id, offset, **over))

    async def offset(self, code: int, topic: str, queue_id: int = 0, **over: str) -> int:
        response = await self.ask(code, {"topic": topic, "queueId": str(queue_id), **over})
        assert response.code == 0, response
        assert response.ext_fields is not None
        return int(response.ext_fields["offset"] or "")

    async def is_closed(self, timeout: float = 60.0) -> bool:
        """Whether the server closes the connection, after any frames it sends before."""
        try:
            while await asyncio.wait_for(self.reader.read(65536), timeout):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True


def send_fields(
    topic: str, *, queue: int = 0, properties: Mapping[str, str] | str | None = None, **over: str | None
) -> dict[str, str]:
    """Fields of a send in the one-letter form; ``over``: other values by letter, None to leave one out."""
    if properties is None:
        properties = {"UNIQ_KEY": UNIQUE_ID, "WAIT": "true", "TAGS": "A"}
    text = properties if isinstance(properties, str) else properties_text(properties)
    fields: dict[str, str | None] = {
        "a": "PG",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue),
        "f": "0",
        "g": "1700000000000",
        "h": "7",
        "i": text,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    }
    fields.update(over)
    return {name: value for name, value in fields.items() if value is not None}


def pull_fields(topic: str, queue_id: int = 0, offset: int = 0, **over: str) -> dict[str, str]:
    fields = {
        "consumerGroup": "CG",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "1000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return {**fields, **over}


def oneway(flag: int = 0) -> int:
    return flag | ONEWAY_FLAG
