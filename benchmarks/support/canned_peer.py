"""A name server and broker in one port that answers route requests and sends with canned text: ``python canned_peer.py SECONDS``.

It prints its port and ends after that time. It does the same work for each client, of any version.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Final

import msgspec

ROUTE: Final = 105
SENDS: Final = (310, 320)
OPAQUE: Final = re.compile(rb'"opaque":(-?\d+)')
CODE: Final = re.compile(rb'"code":(\d+)')
QUEUE: Final = re.compile(rb'"e":"?(\d+)')
MAX_FRAME: Final = 16 << 20
SUCCESS: Final = b'{"code":0,"flag":1,"language":"JAVA","opaque":%s,"serializeTypeCurrentRPC":"JSON","version":513}'
STORED: Final = (
    b'{"code":0,"extFields":{"queueId":"%s","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"7F00000100002A9F0000000000'
    b'123456","queueOffset":"12345"},"flag":1,"language":"JAVA","opaque":%s,"serializeTypeCurrentRPC":"JSON","version":513}'
)


def framed(header: bytes, body: bytes = b"") -> bytes:
    return (len(header) + len(body) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def route(port: int) -> bytes:
    queues = {"brokerName": "b", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
    broker = {"brokerAddrs": {"0": f"127.0.0.1:{port}"}, "brokerName": "b", "cluster": "c"}
    return msgspec.json.encode({"brokerDatas": [broker], "filterServerTable": {}, "queueDatas": [queues]})


class Peer(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._pending = b""
        self._route = route(transport.get_extra_info("sockname")[1])

    def data_received(self, data: bytes) -> None:
        data = self._pending + data
        answers, at = [], 0
        while len(data) - at >= 8:
            length = int.from_bytes(data[at : at + 4], "big")
            if length > MAX_FRAME:
                self._transport.abort()
                return
            if len(data) - at < 4 + length:
                break
            size = int.from_bytes(data[at + 5 : at + 8], "big")
            answers.append(self._answer(data[at + 8 : at + 8 + size]))
            at += 4 + length
        self._pending = data[at:]
        self._transport.write(b"".join(answers))

    def _answer(self, header: bytes) -> bytes:
        code, opaque = _first(CODE, header), _first(OPAQUE, header)
        if int(code) in SENDS:
            return framed(STORED % (_first(QUEUE, header), opaque))
        return framed(SUCCESS % opaque, self._route if int(code) == ROUTE else b"")


def _first(pattern: re.Pattern[bytes], header: bytes) -> bytes:
    found = pattern.search(header)
    return found[1] if found is not None else b"0"


async def main(seconds: float) -> None:
    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(seconds)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
