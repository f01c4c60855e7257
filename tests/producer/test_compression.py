"""Bodies on the wire: compressed from a size on, unless that makes them larger."""

from __future__ import annotations

import asyncio
import random
from time import monotonic

import pytest

from rmq_protocol.compression import CompressionType, decompress
from rmq_protocol.constants import SysFlag

from ..support.fakes import Cluster, Sent, each, refuse, stored
from .support import message, producer, until

pytestmark = pytest.mark.virtual_time

KINDS = {"zlib": CompressionType.ZLIB, "lz4": CompressionType.LZ4, "zstd": CompressionType.ZSTD}


def unpacked(sent: Sent) -> bytes:
    kind = CompressionType(sent.sys_flag & 0x700)
    return decompress(sent.body, kind, 16 << 20)


@pytest.mark.parametrize("name", KINDS)
async def test_each_kind_says_what_it_is(cluster: Cluster, name: str) -> None:
    body = b"abc" * 3000
    async with producer(cluster, compress_type=name) as sender:
        result = await sender.send(message(body))
        await sender.send(message(body), key=1)
        await (await sender.send_async(message(body)))
        await sender.send_oneway(message(body))
        await until(lambda: len(cluster.sends) == 4)
    for sent in cluster.sends:
        assert sent.sys_flag == SysFlag.COMPRESSED | KINDS[name].value
        assert len(sent.body) < 500
        assert unpacked(sent) == body
    assert result.attempts == 1


async def test_from_compress_over_on(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        for size in (4095, 4096, 4097):
            await sender.send(message(b"x" * size))
    assert [sent.sys_flag & 1 for sent in cluster.sends] == [0, 1, 1]
    assert [unpacked(sent) for sent in cluster.sends[1:]] == [b"x" * 4096, b"x" * 4097]


async def test_compress_over_is_a_setting(cluster: Cluster) -> None:
    async with producer(cluster, compress_over=0) as sender:
        await sender.send(message(b"x" * 100))
        await sender.send(message(b"x"))
    async with producer(cluster, compress_over=1 << 30) as sender:
        await sender.send(message(b"x" * 100_000))
    assert [sent.sys_flag & 1 for sent in cluster.sends] == [1, 0, 0]


@pytest.mark.parametrize("name", KINDS)
async def test_what_does_not_get_smaller_stays_as_it_is(cluster: Cluster, name: str) -> None:
    body = random.Random(1).randbytes(70_000)
    async with producer(cluster, compress_type=name) as sender:
        for size in (5000, 70_000):
            await sender.send(message(body[:size], flag=7))
    for sent in cluster.sends:
        assert sent.sys_flag == 0
        assert body.startswith(sent.body)
        assert sent.fields["h"] == "7"


async def test_the_level_is_a_setting(cluster: Cluster) -> None:
    body = bytes(random.Random(2).choices(b"abcdefgh", k=50_000))
    for level in (1, 9):
        async with producer(cluster, compress_level=level) as sender:
            await sender.send(message(body))
    low, high = cluster.sends
    assert low.body != high.body
    assert unpacked(low) == unpacked(high) == body


async def test_large_bodies_are_compressed_off_the_loop(cluster: Cluster) -> None:
    """Four bodies that take 100 ms and more each: the loop goes on meanwhile."""
    body = bytes(random.Random(3).choices(b"abcdefgh", k=4 << 20))
    longest, before, over = 0.0, monotonic(), False

    async def watch() -> None:
        nonlocal longest, before
        while not over:
            await asyncio.sleep(0.001)
            longest, before = max(longest, monotonic() - before), monotonic()

    async with producer(cluster, compress_level=9, timeout=30.0) as sender:
        await sender.send(message())
        watching = asyncio.ensure_future(watch())
        began = monotonic()
        await asyncio.gather(sender.send(message(body)), sender.send(message(body), key="k"))
        taken, over = monotonic() - began, True
        await watching
    assert [unpacked(sent) == body for sent in cluster.sends[1:]] == [True, True]
    assert longest < taken / 3, f"the loop stood still for {longest:.3f} of {taken:.3f} s"


async def test_a_retry_compresses_once(pair: Cluster) -> None:
    pair.answer(each(refuse(1), stored))
    body = b"abc" * 3000
    async with producer(pair) as sender:
        result = await sender.send(message(body))
    first, second = pair.sends
    assert result.attempts == 2
    assert first.body == second.body
    assert first.sys_flag == second.sys_flag == 1 | KINDS["zlib"].value
