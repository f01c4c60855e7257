"""Connections of a group consumer cut at each field of pulls, commits, locks and give-backs, on a real broker; every byte of them:
tests/consumer/group/test_cuts.py."""

from __future__ import annotations

import asyncio

from rmq_async.testing.cluster import RealCluster

from ..support.frame_cuts import Place
from ..support.group_cuts import CUTS, WAYS, cut_each, fields_of

EVERY = 3
"""The suite takes every third field, ``benchmarks/consumer_runs.py --what cuts`` each."""


def some(frame: bytes) -> list[Place]:
    fields = fields_of(frame)
    return [*fields[::EVERY], fields[-1]]


async def test_group_consumer_cut_in_fields_of_its_requests_loses_and_repeats_nothing(cluster: RealCluster) -> None:
    broker = cluster.brokers[0].name
    found = await asyncio.gather(*(cut_each(cluster.namesrv, broker, what, way, some) for what in CUTS for way in WAYS))
    print(*found, sep="\n")
    assert [each for each in found if not each.kept] == []
    assert min(each.cuts for each in found) > 3
