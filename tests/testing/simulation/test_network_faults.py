"""What can befall links and machines, and what both ends of a stream see of it."""

from __future__ import annotations

import asyncio
import errno

import pytest

from .networks import PORT, Hosts, Recorder

KIB = 1024


def now() -> float:
    return asyncio.get_running_loop().time()


def test_bytes_that_a_cut_has_lost_arrive_in_order_after_it() -> None:
    """At the next time at which a kernel sends again: 0.2 to 0.3 s after the loss, then after twice as long each."""
    hosts = Hosts()

    async def main() -> tuple[float, float]:
        near, far = await hosts.pair(far=Recorder(echo=True))
        near.transport.write(b"before ")
        await near.size(7)
        await asyncio.sleep(1)
        hosts.link.cut()
        began = now()
        for word in (b"one ", b"two ", b"three "):
            near.transport.write(word)
            await asyncio.sleep(0.3)
        assert near.received == far.received == b"before "
        await asyncio.sleep(4)
        assert near.received == far.received == b"before "
        hosts.link.heal()
        healed = now()
        near.transport.write(b"four")
        await near.size(25)
        assert near.received == far.received == b"before one two three four"
        assert near.events == far.events == ["made"]
        assert hosts.link.held == 3
        return healed - began, now() - began

    cut, took = hosts.run(main)
    assert 4.8 < cut < took < 9.9


def test_a_short_cut_is_healed_by_the_first_repetition() -> None:
    hosts = Hosts()

    async def main() -> float:
        near, far = await hosts.pair()
        hosts.link.cut()
        near.transport.write(b"x")
        began = now()
        asyncio.get_running_loop().call_later(0.05, hosts.link.heal)
        await far.size(1)
        return now() - began

    assert 0.2 < hosts.run(main) < 0.32


def test_a_cut_in_one_direction_delivers_the_other() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        hosts.link.cut(one_way="client")
        near.transport.write(b"lost")
        far.transport.write(b"heard")
        assert await near.size(5) == b"heard"
        await asyncio.sleep(5)
        assert far.received == b""
        far.transport.write(b" and heard")
        assert await near.size(15) == b"heard and heard"
        hosts.link.heal()
        assert await far.size(4) == b"lost"
        await asyncio.sleep(1000)
        assert near.events == far.events == ["made"], "nothing waits for an answer any more"

    hosts.run(main)


@pytest.mark.parametrize("one_way", [None, "client", "server"])
def test_a_kernel_gives_up_after_924_seconds_without_an_answer(one_way: str | None) -> None:
    hosts = Hosts()

    async def main() -> tuple[float, Recorder]:
        near, far = await hosts.pair()
        hosts.link.cut(one_way=one_way)
        near.transport.write(b"x")
        began = now()
        error = await near.lost()
        assert isinstance(error, TimeoutError)
        assert error.errno == errno.ETIMEDOUT
        took = now() - began
        assert far.events == ["made"], "half open"
        hosts.link.heal()
        far.transport.write(b"is there anything?")
        assert isinstance(await far.lost(), ConnectionResetError)
        return took, far

    took, far = hosts.run(main)
    assert 924 < took < 926
    assert far.received == (b"x" if one_way == "server" else b"")
    assert hosts.left() == 0


def test_both_ends_give_up_when_both_have_sent() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        hosts.link.cut()
        near.transport.write(b"x")
        await asyncio.sleep(100)
        far.transport.write(b"y")
        assert isinstance(await near.lost(), TimeoutError)
        assert isinstance(await far.lost(), TimeoutError)
        assert 99 < far.lost_at - near.lost_at < 101

    hosts.run(main)
    assert hosts.left() == 0


def test_a_cut_link_without_traffic_harms_no_stream() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, _ = await hosts.pair(far=Recorder(echo=True))
        hosts.link.cut()
        await asyncio.sleep(5000)
        hosts.link.heal()
        near.transport.write(b"x")
        await near.size(1)
        assert hosts.link.held == 0

    hosts.run(main)


def test_many_short_cuts_lose_and_repeat_no_byte() -> None:
    hosts = Hosts(seed=99)
    data = bytes(range(256)) * 4096

    async def main() -> None:
        near, far = await hosts.pair(far=Recorder(echo=True))

        async def flicker() -> None:
            while True:
                await asyncio.sleep(0.03)
                hosts.link.cut()
                await asyncio.sleep(0.01)
                hosts.link.heal()

        flickering = asyncio.create_task(flicker())
        for at in range(0, len(data), 4096):
            near.transport.write(data[at : at + 4096])
            await asyncio.sleep(0.001)
        await near.size(len(data))
        flickering.cancel()
        assert far.received == near.received == data
        assert hosts.link.held > 10
        near.transport.close()
        await far.lost()
        await asyncio.sleep(5)

    hosts.run(main)
    assert hosts.left() == 0


def test_a_full_window_opens_again_after_a_cut() -> None:
    """The segment that announces the room is lost in the cut; without a question for it both would wait for ever."""
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        far.transport.pause_reading()
        near.transport.write(bytes(1024 * KIB))
        await asyncio.sleep(1)
        hosts.link.cut()
        far.transport.resume_reading()
        await asyncio.sleep(1)
        assert len(far.received) == 256 * KIB
        hosts.link.heal()
        await far.size(1024 * KIB)

    hosts.run(main)


def test_a_slow_link_adds_its_latency_until_it_ends() -> None:
    hosts = Hosts()

    async def trip(near: Recorder) -> float:
        began, size = now(), len(near.received)
        near.transport.write(b"x")
        await near.size(size + 1)
        return now() - began

    async def main() -> list[float]:
        near, _ = await hosts.pair(far=Recorder(echo=True))
        hosts.link.slow(0.5)
        slow = await trip(near)
        hosts.link.slow(0)
        return [slow, await trip(near)]

    slow, fast = hosts.run(main)
    assert 1.0 < slow < 1.3
    assert fast < 0.3


def test_a_dropped_link_resets_its_streams_and_takes_new_ones() -> None:
    hosts = Hosts("client", "server", "other")

    async def main() -> None:
        near, far = await hosts.pair()
        server = await hosts.listen(lambda: Recorder(echo=True), on="other")
        spared = await hosts.connect(Recorder(), "other")
        near.transport.write(b"lost")
        assert hosts.link.drop() == 1
        assert isinstance(await near.lost(), ConnectionResetError)
        assert isinstance(await far.lost(), ConnectionResetError)
        assert far.received == b""
        assert hosts.link.resets == 1
        spared.transport.write(b"x")
        await spared.size(1)
        again, _ = await hosts.pair()
        assert again.events == ["made"]
        assert server.is_serving()

    hosts.run(main)


def test_a_crash_ends_streams_with_a_reset_or_in_order_and_refuses_connects() -> None:
    hosts = Hosts(seed=8)
    errors: list[type[BaseException]] = []

    async def main() -> None:
        await hosts.listen(Recorder)
        nears = [await hosts.connect(Recorder()) for _ in range(20)]
        await asyncio.sleep(0.1)
        hosts.loops["server"].close()
        hosts["server"].crash()
        errors.extend([type(await near.lost()) for near in nears])
        with pytest.raises(ConnectionRefusedError):
            await hosts.connect(Recorder())
        hosts.loops["server"] = hosts.process("server")
        await hosts.listen(lambda: Recorder(echo=True))
        near = await hosts.connect(Recorder())
        near.transport.write(b"x")
        await near.size(1)
        near.transport.close()
        await asyncio.sleep(1)

    hosts.run(main)
    assert set(errors) == {ConnectionResetError, type(None)}
    assert hosts.left() == 0


def test_a_process_that_has_ended_writes_nothing_more() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        hosts.loops["server"].close()
        far.transport.write(b"from the dead")
        hosts["server"].crash()
        await near.lost()
        assert near.received == b""
        await asyncio.sleep(1)

    hosts.run(main)
    assert hosts.left() == 0


def test_a_machine_without_power_is_silent_and_answers_with_resets_later() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, _ = await hosts.pair()
        idle, _ = await hosts.pair()
        hosts.loops["server"].close()
        hosts["server"].power_off()
        near.transport.write(b"x")
        await asyncio.sleep(60)
        assert near.events == idle.events == ["made"]
        hosts["server"].power_on()
        began = now()
        assert isinstance(await near.lost(), ConnectionResetError)
        assert now() - began < 60
        assert idle.events == ["made"]
        idle.transport.write(b"x")
        assert isinstance(await idle.lost(), ConnectionResetError)

    hosts.run(main)
    assert hosts.left() == 0


def test_a_machine_that_stays_without_power_is_given_up() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, _ = await hosts.pair()
        hosts["server"].power_off()
        near.transport.write(b"x")
        assert isinstance(await near.lost(), TimeoutError)

    hosts.run(main)
    assert hosts.left() == 0


def test_a_stopped_process_gets_its_bytes_when_it_goes_on_before_its_timers_run() -> None:
    hosts = Hosts()
    order: list[str] = []

    class Ordered(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            order.append("bytes")

    async def main() -> None:
        near, far = await hosts.pair(far=Ordered())
        hosts.loops["server"].call_later(5, order.append, "timer")
        hosts.pause("server")
        near.transport.set_write_buffer_limits(high=0)
        near.transport.write(bytes(600 * KIB))
        await asyncio.sleep(10)
        assert near.events == ["made", "paused"]
        assert near.transport.get_write_buffer_size() == 600 * KIB - 512 * KIB
        assert far.transport.get_extra_info("unread") == 256 * KIB
        assert order == []
        hosts.resume("server")
        await far.size(600 * KIB)
        assert order[:2] == ["bytes", "timer"]
        await near.until(lambda: near.events == ["made", "paused", "resumed"])

    hosts.run(main)


def test_a_stopped_process_learns_of_a_reset_when_it_goes_on() -> None:
    hosts = Hosts()

    async def main() -> None:
        _, far = await hosts.pair()
        hosts.pause("server")
        hosts.link.drop()
        await asyncio.sleep(10)
        assert far.events == ["made"]
        hosts.resume("server")
        assert isinstance(await far.lost(), ConnectionResetError)

    hosts.run(main)


def test_a_machine_that_moves_is_found_at_its_new_address_only() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        await hosts.listen(lambda: Recorder(echo=True))
        hosts["server"].move("10.1.0.9")
        near.transport.write(b"to the old address")
        far.transport.write(b"from the old address")
        again = await hosts.connect(Recorder())
        assert again.transport.get_extra_info("peername") == ("10.1.0.9", PORT)
        again.transport.write(b"x")
        await again.size(1)
        with pytest.raises(OSError, match="Connect call failed"):
            await hosts.connect(Recorder(), "10.0.0.2")
        assert near.events == far.events == ["made"]
        hosts["server"].move("10.0.0.2")
        assert await far.size(18) == b"to the old address"
        assert await near.size(20) == b"from the old address"
        hosts["server"].move("10.1.0.9")
        near.transport.write(b"x")
        assert isinstance(await near.lost(), TimeoutError)

    hosts.run(main)


def test_streams_of_a_moved_machine_to_itself_go_on() -> None:
    hosts = Hosts()

    async def main() -> None:
        await hosts.listen(lambda: Recorder(echo=True), on="client")
        near = await hosts.connect(Recorder(), "localhost")
        hosts["client"].move("10.1.0.9")
        near.transport.write(b"x")
        await near.size(1)

    hosts.run(main)


def test_a_closing_transport_with_bytes_left_learns_of_a_reset() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        far.transport.pause_reading()
        near.transport.write(bytes(1024 * KIB))
        near.transport.close()
        await asyncio.sleep(1)
        assert "lost" not in near.events
        hosts.link.drop()
        assert isinstance(await near.lost(), ConnectionResetError)

    hosts.run(main)


def test_a_reset_that_was_lost_is_asked_for_again() -> None:
    """The sender repeats what was not answered, and gets the reset then."""
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        far.transport.pause_reading()
        near.transport.write(b"never read")
        await asyncio.sleep(1)
        hosts.link.cut(one_way="server")
        far.transport.abort()
        near.transport.write(b"into the void")
        await asyncio.sleep(10)
        assert near.events == ["made"]
        hosts.link.heal()
        assert isinstance(await near.lost(), ConnectionResetError)

    hosts.run(main)
    assert hosts.left() == 0
