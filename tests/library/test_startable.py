"""Objects that an ``async with`` block starts and stops."""

from __future__ import annotations

import pytest

from rmq_async._asyncio import Startable

pytestmark = pytest.mark.interpreters


class Recorded(Startable):
    """Records its calls; ``broken``: its start fails."""

    def __init__(self, *, broken: bool = False) -> None:
        self.calls: list[str] = []
        self.broken = broken

    async def start(self) -> None:
        self.calls.append("start")
        if self.broken:
            raise OSError("no address")

    async def stop(self) -> None:
        self.calls.append("stop")


async def test_startable_in_a_block_is_started_and_stopped() -> None:
    async with Recorded() as inside:
        assert inside.calls == ["start"]
    assert inside.calls == ["start", "stop"]


async def test_startable_whose_block_fails_is_stopped_and_the_error_goes_on() -> None:
    subject = Recorded()
    with pytest.raises(KeyError, match="block"):
        async with subject:
            raise KeyError("block")
    assert subject.calls == ["start", "stop"]


async def test_startable_whose_start_fails_is_not_stopped() -> None:
    subject = Recorded(broken=True)
    with pytest.raises(OSError, match="no address"):
        async with subject:
            pytest.fail("the block ran")
    assert subject.calls == ["start"]


def test_startable_without_a_stop_cannot_be_made() -> None:
    class Half(Startable):
        async def start(self) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]
