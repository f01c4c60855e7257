"""Faults of links between machines."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from ..faults import Begin, Effect
from ..network import Link
from .effect import Cluster, drawn, once

LATENCIES: Final = (0.02, 0.2, 1.0, 4.0)
"""Additional latencies in seconds."""


def on_link(cluster: Cluster, strike: Callable[[Random, Link], Effect]) -> Begin:
    """Return a function that begins a fault on a link. The link is drawn from the links between two different machines."""

    def begin(chance: Random, duration: float) -> Effect | None:
        link = drawn(chance, [link for link in cluster.network.links if link.a != link.b])
        return None if link is None else strike(chance, link)

    return begin


def cut(chance: Random, link: Link) -> Effect:
    before = link.held + link.unconnected
    link.cut()
    return Effect(link.heal, lambda: link.held + link.unconnected > before)


def early_close(chance: Random, link: Link) -> Effect:
    before = link.unconnected
    link.drop()
    link.close_early()
    return Effect(lambda: link.close_early(False), lambda: link.unconnected > before)


def half_cut(chance: Random, link: Link) -> Effect:
    before = link.held + link.unconnected
    link.cut(one_way=chance.choice((link.a, link.b)))
    return Effect(link.heal, lambda: link.held + link.unconnected > before)


def hang(chance: Random, link: Link) -> Effect:
    before = link.unconnected
    link.drop()
    link.hang()
    return Effect(lambda: link.hang(False), lambda: link.unconnected > before)


def reset(chance: Random, link: Link) -> Effect:
    return once(link.drop() > 0)


def slow(chance: Random, link: Link) -> Effect:
    before = link.carried
    link.slow(chance.choice(LATENCIES))
    return Effect(lambda: link.slow(0.0), lambda: link.carried > before)
