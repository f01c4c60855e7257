"""Seconds of everything at once on embedded brokers, in virtual time; what is stored decides."""

from __future__ import annotations

import os
import random

import pytest

from .faults import KINDS
from .run import Report, embedded_run

SECONDS = 3.0
"""Of load, at least: it goes on until most kinds of faults were met."""


def seed_of_run() -> int:
    return int(os.environ.get("RMQ_STRESS_SEED") or random.randrange(1, 1_000_000))


def hold(report: Report) -> None:
    print(report)
    assert report.broken == [], f"seed {report.seed}"
    assert report.ends["acked"] > 1000, f"seed {report.seed}: {report.ends}"
    assert min(report.ends[end] for end in ("failed", "cancelled", "sent")) > 10, f"seed {report.seed}: {report.ends}"
    assert len(report.faults) >= KINDS, f"seed {report.seed}: {report.faults}"


@pytest.mark.virtual_time
async def test_stress_on_embedded_brokers() -> None:
    seed = seed_of_run()
    print("seed", seed)
    hold(await embedded_run(seed, SECONDS))
