"""What speaks at the port of something else, by its first bytes."""

from __future__ import annotations

import json
import struct

import pytest

from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.foreign import foreign_peer
from rmq_protocol.frame import FrameDecoder, encode_frame

PEERS = {
    "HTTP/1.1": (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "as an HTTP server: 'HTTP/1.1 400 Bad Request'"),
    "HTTP/0.9": (b"<html><head><title>Error</title>", "as an HTTP server: '<html>"),
    "SSH": (b"SSH-2.0-OpenSSH_9.6\r\n", "as an SSH server: 'SSH-2.0-OpenSSH_9.6'"),
    "alert of TLS": (b"\x15\x03\x03\x00\x02\x02\x46", "it speaks TLS (record type 0x15); set tls=True"),
    "handshake of TLS": (b"\x16\x03\x01\x02\x00\x01", "it speaks TLS (record type 0x16); set tls=True"),
    "Redis": (b"-ERR unknown command\r\n", "as a Redis server: '-ERR unknown command'"),
    "Redis with a password": (b"-NOAUTH Authentication required.\r\n", "as a Redis server"),
    "MySQL": (b"\x4a\x00\x00\x00\x0a8.0.36\x00", "as a MySQL server"),
    "MySQL that refuses": (b"\x45\x00\x00\x00\xff\x69\x04Host", "as a MySQL server"),
    "PostgreSQL": (b"E\x00\x00\x00\x8cSFATAL\x00VFATAL\x00", "as a PostgreSQL server"),
    "RabbitMQ": (b"AMQP\x00\x00\x09\x01", "as an AMQP server"),
    "SMTP": (b"220 mail.example.org ESMTP\r\n", "as a mail or FTP server: '220 mail.example.org ESMTP'"),
    "a text": (b"What is this?\n\x00\xff", "with the text 'What is this?'"),
    "a long line": (b"x" * 100, "with the text '" + "x" * 60 + "...'"),
}


@pytest.mark.parametrize("peer", PEERS)
def test_broken_frame_names_the_peer(peer: str) -> None:
    data, text = PEERS[peer]
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.cut(data)
    assert text in str(caught.value)


def test_four_bytes_are_enough_to_name_a_peer() -> None:
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError, match="as an SSH server: 'SSH-'"):
        for byte in b"SSH-":
            decoder.cut(bytes([byte]))


def test_peer_of_http_2_is_named_by_the_frame_that_does_not_end() -> None:
    """Its first bytes could be those of a frame of RocketMQ."""
    decoder = FrameDecoder()
    assert decoder.cut(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00\x03\x7f\xff\xff\xff" * 3) == []
    assert decoder.peer is not None
    assert "gRPC or HTTP/2 server" in decoder.peer


@pytest.mark.parametrize("length", [1 << 24, 64 << 20, (1 << 27) - 1])
def test_long_frame_of_rocketmq_is_none_of_them(length: int) -> None:
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError, match=f"frame length {length} is above the limit"):
        decoder.cut(struct.pack(">iI", length, 100))


def test_frames_of_rocketmq_are_none_of_them() -> None:
    for size in (0, 1, 64, 4_096, 0x1204 - 40, 1 << 20):
        header = json.dumps({"code": 0, "opaque": 7}).encode()
        frame = b"".join(encode_frame(0, header, bytes(size)))  # type: ignore[arg-type]
        for end in (4, 8, 9, 40, 64):
            assert foreign_peer(frame[:end]) is None


@pytest.mark.parametrize("data", [b"", b"H", b"HTT", b"\x15\x03"])
def test_fewer_than_four_bytes_name_no_peer(data: bytes) -> None:
    assert foreign_peer(data) is None
