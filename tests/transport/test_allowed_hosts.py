"""``allowed_broker_hosts``: hosts as they are written, networks for addresses, name servers in any case."""

from __future__ import annotations

import pytest

from rmq_async.config import ClientConfig
from rmq_async.errors import ConfigError, ConnectError
from rmq_async.transport.addresses import AllowedHosts

from ..support.fakes import Peer
from .support import ping, pool_of


def allowed(*hosts: str) -> AllowedHosts:
    kept = ClientConfig(allowed_broker_hosts=hosts).allowed_broker_hosts
    assert kept is not None
    return AllowedHosts(kept)


@pytest.mark.parametrize(
    ("setting", "inside", "outside"),
    [
        (
            "10.0.0.0/8",
            ["10.0.0.1", "10.255.255.255", "::ffff:10.1.2.3"],
            ["11.0.0.1", "9.255.255.255", "10.1", "0xa.0.0.1", "ten"],
        ),
        (
            "10.1.2.3",
            ["10.1.2.3", "::ffff:10.1.2.3", "::ffff:a01:203"],
            ["10.1.2.4", "10.1.2.3.example", "010.1.2.3", "167838211"],
        ),
        (
            "Broker-A.example",
            ["broker-a.EXAMPLE", "broker-a.example."],
            ["a.broker-a.example", "broker-a.example.evil", "broker-a"],
        ),
        ("fd00::/8", ["fd12::1", "FD12:0::0001"], ["fe80::1", "::1", "10.0.0.1"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "127.0.0.1", "localhost"]),
        ("[::1]", ["::1"], ["::2"]),
        ("0.0.0.0/0", ["127.0.0.1", "8.8.8.8"], ["::1", "localhost", ""]),
    ],
)
def test_what_a_setting_lets_in(setting: str, inside: list[str], outside: list[str]) -> None:
    hosts = allowed(setting)
    assert [host for host in inside if host not in hosts] == []
    assert [host for host in outside if host in hosts] == []


@pytest.mark.parametrize(
    "wrong", ["10.0.0.1/8", "10.0.0.0/33", "broker/8", "10.0.0.1:10911", "broker:10911", "fd00::/129", ":::", "", 5]
)
def test_what_is_no_host_and_no_network_is_a_config_error(wrong: str) -> None:
    with pytest.raises(ConfigError, match="allowed_broker_hosts"):
        ClientConfig(allowed_broker_hosts=["10.0.0.1", wrong])


def test_several_ways_to_write_the_same_are_equal_settings() -> None:
    one = ClientConfig(allowed_broker_hosts=["FD00:0::1", "Broker", "10.0.0.0/8"])
    assert one == ClientConfig(allowed_broker_hosts=("10.0.0.0/8", "broker.", "fd00::1", "broker"))
    assert hash(one) == hash(ClientConfig(allowed_broker_hosts={"10.0.0.0/8", "broker.", "fd00::1"}))


async def test_a_host_that_is_not_allowed_is_not_connected_to() -> None:
    async with Peer() as peer, pool_of(allowed_broker_hosts=["10.0.0.0/8", "localhost"]) as pool:
        with pytest.raises(ConnectError, match=r"allowed_broker_hosts does not allow 127\.0\.0\.1") as caught:
            await pool.connect(peer.address, 60)
        assert caught.value.address == peer.address
        assert not peer.links
        assert (await (await pool.connect(f"localhost:{peer.port}", 60)).request(ping(b"1"), 60)).body == b"1"


async def test_the_configured_name_servers_are_always_allowed_and_nothing_else_on_their_hosts() -> None:
    async with (
        Peer() as name_server,
        Peer() as other,
        pool_of(namesrv=name_server.address, allowed_broker_hosts=["10.0.0.0/8"]) as pool,
    ):
        assert (await pool.connect(name_server.address, 60)).is_open
        with pytest.raises(ConnectError, match="allowed_broker_hosts"):
            await pool.connect(other.address, 60)
