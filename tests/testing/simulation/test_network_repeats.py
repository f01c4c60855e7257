"""The same seed gives the same deliveries; what one link does leaves the others alone."""

from __future__ import annotations

import asyncio
from random import Random

from .networks import Hosts, Recorder

Delivery = tuple[str, int, bytes]


def traffic(seed: int, *, busy: bool = True) -> list[Delivery]:
    """Returns the deliveries of a client that talks to two servers; ``busy``: also to the second."""
    seen: list[Delivery] = []
    hosts = Hosts("client", "one", "two", seed=seed, observe=lambda link, at, data: seen.append((link, at, data)))

    async def talk(name: str) -> None:
        chance = Random(f"{seed} {name}")
        near = await hosts.connect(Recorder(), name)
        for _ in range(100):
            near.transport.write(bytes(chance.randrange(1, 20_000)))
            await asyncio.sleep(0.01 * chance.random())
        hosts.network.link("client", name).cut()
        near.transport.write(b"later")
        await asyncio.sleep(1)
        hosts.network.link("client", name).heal()
        near.transport.close()
        await asyncio.sleep(5)

    async def main() -> None:
        for name in ("one", "two"):
            await hosts.listen(lambda: Recorder(echo=True), on=name)
        await asyncio.gather(*[talk(name) for name in (("one", "two") if busy else ("one",))])

    hosts.run(main)
    return seen


def test_one_seed_delivers_the_same_bytes_at_the_same_times() -> None:
    first = traffic(4711)
    assert len(first) > 400
    assert traffic(4711) == first
    assert traffic(4712) != first


def test_a_link_delivers_the_same_with_and_without_traffic_on_another() -> None:
    def of_one(deliveries: list[Delivery]) -> list[tuple[str, bytes]]:
        return [(link.replace(":", " ").split()[0], data) for link, _, data in deliveries if "one" in link]

    with_other, alone = traffic(4713), traffic(4713, busy=False)
    assert any("two" in link for link, _, _ in with_other)
    assert not any("two" in link for link, _, _ in alone)
    pieces = [
        [(len(data)) for link, _, data in run if link.startswith("client") and "->one" in link] for run in (with_other, alone)
    ]
    assert len(pieces[0]) > 100
    assert pieces[0] == pieces[1]
    assert of_one(with_other)[:50] == of_one(alone)[:50]


def test_a_delivery_names_both_machines_and_ports() -> None:
    deliveries = traffic(4714, busy=False)
    links = dict.fromkeys(link for link, _, _ in deliveries)
    assert len(links) == 2
    assert all(link.count("->") == 1 for link in links)
    assert any(link.startswith("client:") and link.endswith("->one:9876") for link in links)
    times = [at for _, at, _ in deliveries]
    assert times == sorted(times)
