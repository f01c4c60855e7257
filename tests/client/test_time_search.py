"""The search that makes an old broker's hint exact, against a plain list."""

from __future__ import annotations

import random

from rmq_async.client.offsets import first_at_or_after


async def found(times: list[int], low: int, wanted: int, hint: int) -> tuple[int, int]:
    """What is found, and how many messages were looked at."""
    looked: list[int] = []

    async def late(offset: int) -> bool:
        assert low <= offset < len(times)
        looked.append(offset)
        return times[offset] >= wanted

    return await first_at_or_after(low, len(times), hint, late), len(looked)


async def test_the_first_is_found_with_any_hint() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(2000):
        times = sorted(chance.randrange(30) for _ in range(chance.randrange(40)))
        low = chance.randrange(len(times) + 1)
        wanted, hint = chance.randrange(-1, 32), chance.randrange(-5, 50)
        first = next((offset for offset in range(low, len(times)) if times[offset] >= wanted), len(times))
        assert (await found(times, low, wanted, hint))[0] == first


async def test_a_good_hint_costs_few_looks_and_a_bad_one_not_many() -> None:
    times = list(range(1_000_000))
    for wanted in (1, 17, 500_000, 999_999):
        for hint in (wanted - 1, wanted, wanted + 1):
            place, looks = await found(times, 0, wanted, hint)
            assert place == wanted
            assert looks <= 4
        place, looks = await found(times, 0, wanted, 3)
        assert place == wanted
        assert looks <= 45
