"""Bodies on the wire: compressed from a size on, unless that makes them larger."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rmq_async import machine
from rmq_async.producer.encoding import outgoing
from rmq_protocol.compression import CompressionType, compress, decompress
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


async def test_large_bodies_are_compressed_off_the_loop(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 64 KiB and more: in a job of a thread, which the simulation runs in the thread of its loop."""
    assert machine.executor is not None
    submit, in_a_job, compressed = machine.executor.submit, False, []

    def submitted(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def job(*given: Any, **named: Any) -> Any:
            nonlocal in_a_job
            in_a_job = True
            try:
                return work(*given, **named)
            finally:
                in_a_job = False

        return submit(job, *args, **options)

    def noted(body: bytes, *more: Any) -> bytes:
        compressed.append((len(body), in_a_job))
        return compress(body, *more)

    monkeypatch.setattr(machine.executor, "submit", submitted)
    monkeypatch.setattr(outgoing, "compress", noted)
    small, large = bytes(64 * 1024 - 1), bytes(64 * 1024)
    async with producer(cluster) as sender:
        for body in (small, large):
            await sender.send(message(body))
            await sender.send(message(body), key="k")
    assert [unpacked(sent) for sent in cluster.sends] == [small, small, large, large]
    assert compressed == [(len(small), False)] * 2 + [(len(large), True)] * 2


async def test_a_retry_compresses_once(pair: Cluster) -> None:
    pair.answer(each(refuse(1), stored))
    body = b"abc" * 3000
    async with producer(pair) as sender:
        result = await sender.send(message(body))
    first, second = pair.sends
    assert result.attempts == 2
    assert first.body == second.body
    assert first.sys_flag == second.sys_flag == 1 | KINDS["zlib"].value
