"""UniqueIds: Java's layout, and never the same id twice, even if the clock jumps."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from rmq_async import machine
from rmq_async.client.unique_ids import UniqueIds, packed_ip
from rmq_protocol.ids import unpack_unique_id

LOCALHOST = bytes([127, 0, 0, 1])


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still until it is moved."""
    clock = Clock(time.time())
    monkeypatch.setattr(machine, "time", clock)
    return clock


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The same for the monotonic one."""
    ticks = Clock(100.0)
    monkeypatch.setattr(machine, "monotonic", ticks)
    return ticks


@pytest.fixture(params=["UTC0", "CET-1CEST,M3.5.0,M10.5.0/3", "EST5EDT,M3.2.0,M11.1.0"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


async def test_an_id_holds_address_process_and_the_time_since_the_month_began(zone: str, clock: Clock) -> None:
    ids = UniqueIds(bytes([10, 1, 2, 3]))
    first, second = unpack_unique_id(ids.next()), unpack_unique_id(ids.next())
    assert (first.ip, first.pid) == ("10.1.2.3", os.getpid() & 0xFFFF)
    local = datetime.fromtimestamp(clock.now)
    month = datetime(local.year, local.month, 1).timestamp()
    assert first.elapsed_ms == int(clock.now * 1000) - int(month) * 1000
    assert second == first._replace(counter=(first.counter + 1) & 0xFFFF)


async def test_born_times_have_thirteen_digits_at_any_clock(clock: Clock) -> None:
    """Frames are measured before they are written; a board without a battery begins in 1970."""
    ids = UniqueIds(bytes(4))
    for clock.now in (0.5, 86_400.25, 1e9 - 0.5, 1e9, 2e9):
        ids.next()
        assert (len(ids.born_ms), int(ids.born_ms)) == (13, int(clock.now * 1000))
        assert ids.now() == ids.born_ms


async def test_ids_by_a_monotonic_time_that_was_read_already_are_those_of_the_clock(clock: Clock, ticks: Clock) -> None:
    ids = UniqueIds(LOCALHOST)
    clock.now = start = int(clock.now) + 0.0005
    for passed in (0.0, 0.0004, 0.0006, 0.0006, 0.01, 5.0):
        clock.now, ticks.now = start + passed, 100.0 + passed
        first, second = unpack_unique_id(ids.next_at(ticks.now)), unpack_unique_id(ids.next())
        assert int(ids.born_ms) == int(clock.now * 1000)
        assert second == first._replace(counter=(first.counter + 1) & 0xFFFF)
    clock.now -= 60  # set back: seen with the next millisecond
    ids.next_at(ticks.now)
    ids.next_at(ticks.now + 0.001)
    assert int(ids.born_ms) == int(clock.now * 1000)


@pytest.mark.virtual_time
async def test_no_id_comes_twice_for_any_time() -> None:
    ids = UniqueIds(LOCALHOST)
    now = time.monotonic()
    seen = [ids.next_at(when) for _ in range(3000) for when in (now, now - 10.0, time.monotonic(), now + 1e6)]
    seen += [ids.next_at(now) for _ in range(140_000)] + ids.take(1000)
    assert len(set(seen)) == len(seen)


async def test_an_ipv6_address_makes_56_characters() -> None:
    address = packed_ip("fd00::1%eth0")
    assert address is not None
    msg_id = UniqueIds(address).next()
    assert len(msg_id) == 56
    assert unpack_unique_id(msg_id).ip == "fd00::1"


@pytest.mark.parametrize(
    ("text", "packed"),
    [("127.0.0.1", LOCALHOST), ("::ffff:127.0.0.1", LOCALHOST), ("::1", bytes(15) + b"\x01"), ("host", None), ("", None)],
)
async def test_addresses_are_packed(text: str, packed: bytes | None) -> None:
    assert packed_ip(text) == packed


async def test_no_id_comes_twice_one_by_one_or_in_batches() -> None:
    ids = UniqueIds(LOCALHOST)
    seen: list[str] = []
    for size in (1, 2, 255, 256, 257, 70_000, 3):
        taken = ids.take(size)
        assert len(taken) == size
        seen += taken
        seen += [ids.next() for _ in range(1000)]
    assert len(set(seen)) == len(seen)
    assert ids.take(0) == []


@pytest.mark.virtual_time
async def test_more_than_65536_ids_in_one_millisecond_begin_the_next_one(clock: Clock) -> None:
    ids = UniqueIds(LOCALHOST)
    taken = [ids.next() for _ in range(70_000)] + ids.take(140_000)
    assert len(set(taken)) == len(taken)
    times = {unpack_unique_id(msg_id).elapsed_ms for msg_id in taken}
    assert len(times) == 4
    assert max(times) - min(times) == 3


async def test_a_clock_that_goes_back_repeats_no_id(clock: Clock) -> None:
    ids = UniqueIds(LOCALHOST)
    taken = []
    start = clock.now
    for step in (0.0, 1.0, -3600.0, -3599.5, 0.5, 0.0, 2.0, -86_400 * 40):
        clock.now = start + step
        taken += ids.take(1000)
        taken += [ids.next() for _ in range(1000)]
    assert len(set(taken)) == len(taken)


async def test_a_new_month_starts_the_time_at_zero(zone: str, clock: Clock) -> None:
    turn = datetime(2026, 1, 1).timestamp()
    clock.now = turn - 0.001
    ids = UniqueIds(LOCALHOST)
    assert unpack_unique_id(ids.next()).elapsed_ms == 31 * 86_400_000 - 1
    clock.now = turn + 0.005
    assert unpack_unique_id(ids.next()).elapsed_ms == 5


async def test_two_clients_of_one_process_have_different_salts() -> None:
    assert unpack_unique_id(UniqueIds(LOCALHOST).next()).salt != unpack_unique_id(UniqueIds(LOCALHOST).next()).salt


async def test_a_forked_child_draws_a_new_salt_and_its_own_process_id() -> None:
    script = """
import os, sys
from rmq_async.client.unique_ids import UniqueIds
ids = UniqueIds(bytes([127, 0, 0, 1]))
ids.next()
child = os.fork()
if child:
    os.waitpid(child, 0)
print(os.getpid(), ids.next(), flush=True)
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    found = [line.split() for line in output.splitlines()]
    assert len(found) == 2
    parts = [(int(pid), unpack_unique_id(msg_id)) for pid, msg_id in found]
    assert all(unique.pid == pid & 0xFFFF for pid, unique in parts)
    assert parts[0][1].salt != parts[1][1].salt
