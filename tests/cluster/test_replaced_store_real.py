"""A real broker whose store is replaced by an older copy: members handle what is acknowledged since."""

from __future__ import annotations

import pytest

from rmq_async import run
from rmq_async.testing.cluster import OLD_VERSION, RealCluster, require

from .replaced_store import KINDS, LATER, OLD, SETTINGS, replace


@pytest.mark.parametrize(
    ("version", "new", "offsets"), [("5.5.0", 30, False), pytest.param(OLD_VERSION, 3, True, marks=pytest.mark.deep)]
)
def test_store_replaced_by_an_older_copy(version: str, new: int, offsets: bool) -> None:
    require()

    async def main() -> None:
        async with RealCluster(version=version, broker_conf=SETTINGS) as cluster:
            counts = await replace(cluster, new, offsets=offsets)
        print(counts)
        assert {kind: (each.acknowledged, each.handled) for kind, each in counts.items()} == dict.fromkeys(KINDS, (new, new))
        assert counts["reading"].lost == LATER
        assert counts["started"].lost == (0 if offsets else LATER)
        assert max(each.repeated for each in counts.values()) <= OLD + LATER

    run(main())
