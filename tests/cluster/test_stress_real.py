"""Half a minute of everything at once on real brokers; what is stored decides."""

from __future__ import annotations

import pytest

from rmq_async.testing import RealCluster

from ..stress.run import real_run
from ..stress.test_stress import SECONDS, hold, seed_of_run


@pytest.mark.deep
async def test_stress_on_real_brokers(two_brokers: RealCluster) -> None:
    seed = seed_of_run()
    print("seed", seed)
    hold(await real_run(seed, SECONDS, two_brokers))
