"""Connects, listeners and names of the simulated network."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from rmq_async.testing.simulation import SimulationError

from .networks import PORT, Hosts, Recorder


async def elapsed(connect: object) -> tuple[BaseException, float]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        await connect  # type: ignore[misc]
    except OSError as error:
        return error, loop.time() - began
    raise AssertionError("it connected")


def test_a_port_without_a_listener_refuses_after_a_round_trip() -> None:
    hosts = Hosts()

    async def main() -> None:
        error, seconds = await elapsed(hosts.connect(Recorder(), "10.0.0.2"))
        assert isinstance(error, ConnectionRefusedError)
        assert error.errno == errno.ECONNREFUSED
        assert "10.0.0.2" in str(error)
        assert 0.0002 <= seconds < 0.1

    hosts.run(main)


def test_a_closed_server_refuses_and_leaves_its_streams() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        error, _ = await elapsed(hosts.connect(Recorder()))
        assert isinstance(error, ConnectionRefusedError)
        near.transport.write(b"still there")
        assert await far.size(11) == b"still there"

    hosts.run(main)


def test_names_resolve_to_addresses_in_order_of_creation() -> None:
    hosts = Hosts("a", "b", "c")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for name, address in (("b", "10.0.0.2"), ("c", "10.0.0.3"), ("localhost", "127.0.0.1"), ("10.9.8.7", "10.9.8.7")):
            infos = await loop.getaddrinfo(name, 80)
            assert infos == [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80))]
        with pytest.raises(socket.gaierror) as raised:
            await loop.getaddrinfo("d", 80)
        assert raised.value.errno == socket.EAI_NONAME
        with pytest.raises(socket.gaierror):
            await loop.create_connection(asyncio.Protocol, "d", 80)

    hosts.run(main, on="a")


def test_a_machine_reaches_itself_by_localhost() -> None:
    hosts = Hosts()

    async def main() -> None:
        server = await hosts.listen(lambda: Recorder(echo=True), on="client")
        near = await hosts.connect(Recorder(), "localhost")
        near.transport.write(b"myself")
        assert await near.size(6) == b"myself"
        assert near.transport.get_extra_info("peername") == ("127.0.0.1", PORT)
        near.transport.close()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(1)

    hosts.run(main)
    assert hosts.left() == 0


def test_a_listener_of_localhost_is_not_reached_from_elsewhere() -> None:
    hosts = Hosts()

    async def main() -> None:
        await hosts.on("server", lambda: hosts.loops["server"].create_server(Recorder, "localhost", PORT))
        error, _ = await elapsed(hosts.connect(Recorder()))
        assert isinstance(error, ConnectionRefusedError)

    hosts.run(main)


def test_free_ports_differ_and_taken_ones_are_refused() -> None:
    hosts = Hosts()

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(Recorder, None, 0) for _ in range(3)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        for host in (None, "127.0.0.1", "10.0.0.1"):
            with pytest.raises(OSError, match="already in use") as raised:
                await loop.create_server(Recorder, host, ports[0])
            assert raised.value.errno == errno.EADDRINUSE
        with pytest.raises(OSError, match="cannot assign") as raised:
            await loop.create_server(Recorder, "10.0.0.2", 5000)
        assert raised.value.errno == errno.EADDRNOTAVAIL
        servers[0].close()
        assert not servers[0].is_serving()
        assert servers[0].sockets == ()
        again = await loop.create_server(Recorder, None, ports[0])
        assert again.is_serving()
        return ports

    ports = hosts.run(main)
    assert len(set(ports)) == 3
    assert Hosts().run(main) == ports


@pytest.mark.parametrize("address", ["10.0.0.77", "hanging", "cut", "off"])
def test_a_connect_without_any_answer_times_out(address: str) -> None:
    hosts = Hosts()

    async def main() -> None:
        await hosts.listen(Recorder)
        host = address if address.startswith("10.") else "server"
        if address == "hanging":
            hosts.link.hang()
        elif address == "cut":
            hosts.link.cut()
        elif address == "off":
            hosts["server"].power_off()
        error, seconds = await elapsed(hosts.connect(Recorder(), host))
        assert isinstance(error, TimeoutError)
        assert error.errno == errno.ETIMEDOUT
        assert 127 <= seconds < 127.01
        if address in ("hanging", "cut"):
            assert hosts.link.unconnected == 7

    hosts.run(main)


@pytest.mark.parametrize("one_way", [None, "client", "server"])
def test_a_connect_over_a_cut_link_succeeds_at_the_next_request_after_the_cut(one_way: str | None) -> None:
    hosts = Hosts()

    async def main() -> None:
        await hosts.listen(lambda: Recorder(echo=True))
        hosts.link.cut(one_way=one_way)
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(5, hosts.link.heal)
        near = await hosts.connect(Recorder())
        assert 7 <= loop.time() - began < 7.1
        near.transport.write(b"x")
        await near.size(1)

    hosts.run(main)


def test_a_refusing_link_refuses_new_connects_only() -> None:
    hosts = Hosts()

    async def main() -> None:
        await hosts.listen(lambda: Recorder(echo=True))
        near = await hosts.connect(Recorder())
        hosts.link.refuse()
        error, _ = await elapsed(hosts.connect(Recorder()))
        assert isinstance(error, ConnectionRefusedError)
        assert hosts.link.unconnected == 1
        near.transport.write(b"x")
        await near.size(1)
        hosts.link.refuse(False)
        await hosts.connect(Recorder())

    hosts.run(main)


def test_a_link_that_closes_early_ends_connections_that_were_made() -> None:
    hosts = Hosts()
    accepted: list[Recorder] = []

    def factory() -> Recorder:
        accepted.append(Recorder(echo=True))
        return accepted[-1]

    async def main() -> None:
        await hosts.listen(factory)
        near = await hosts.connect(Recorder())
        hosts.link.close_early()
        errors = []
        for _ in range(20):
            early = await hosts.connect(Recorder())
            assert early.events == ["made"]
            errors.append(type(await early.lost()))
        assert set(errors) == {type(None), ConnectionResetError}
        assert hosts.link.unconnected == 20
        near.transport.write(b"x")
        await near.size(1)
        hosts.link.close_early(False)
        again = await hosts.connect(Recorder())
        again.transport.write(b"x")
        await again.size(1)
        assert len(accepted) == 2

    hosts.run(main)


def test_a_cancelled_connect_leaves_nothing() -> None:
    hosts = Hosts()
    made: list[Recorder] = []

    def factory() -> Recorder:
        made.append(Recorder())
        return made[-1]

    async def main() -> None:
        await hosts.listen(factory)
        for delay in range(0, 1500, 50):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(delay / 1e6):
                    await hosts.connect(Recorder())
                    await asyncio.sleep(1)
        await asyncio.sleep(1)

    hosts.run(main)
    assert made, "some were cancelled at the very end"
    assert len(made) < 30
    ends = sum(len(host.ends) for host in hosts.hosts.values())
    assert ends == 2 * sum("lost" not in each.events for each in made)


def test_a_paused_process_gets_connections_up_to_its_backlog() -> None:
    hosts = Hosts()
    accepted: list[Recorder] = []

    def factory() -> Recorder:
        accepted.append(Recorder(echo=True))
        return accepted[-1]

    async def main() -> None:
        await hosts.listen(factory)
        hosts.pause("server")
        first = await hosts.connect(Recorder())
        first.transport.write(b"early")
        tasks = []
        for _ in range(120):
            tasks.append(asyncio.create_task(hosts.connect(Recorder())))
            await asyncio.sleep(0.01)
        await asyncio.sleep(20)
        assert not accepted
        assert 98 <= sum(task.done() for task in tasks) <= 101, "100 in all, give or take slow segments"
        hosts.resume("server")
        assert await first.size(5) == b"early"
        await asyncio.sleep(30)
        assert all(task.done() for task in tasks), "those without an answer ask again"
        assert len(accepted) == 121

    hosts.run(main)


def test_wrong_use_of_the_network_is_refused() -> None:
    hosts = Hosts()
    with pytest.raises(SimulationError, match="there is a machine 'client'; choose another name"):
        hosts.network.host("client")
    with pytest.raises(SimulationError, match="no machine 'elsewhere'; there are client, server"):
        hosts.network.link("client", "elsewhere")
    with pytest.raises(SimulationError, match="'x' is not at the link"):
        hosts.link.cut(one_way="x")
    with pytest.raises(SimulationError, match="non-negative number of seconds, not -1"):
        hosts.link.slow(-1)
    with pytest.raises(SimulationError, match="give an IPv4 address"):
        hosts["client"].move("over there")
    with pytest.raises(SimulationError, match="server has it"):
        hosts["client"].move("10.0.0.2")
