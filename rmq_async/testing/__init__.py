"""Tools for tests of code that uses rmq_async. ``import rmq_async`` does not load them.

    FaultProxy, ClusterProxy      proxies that delay, limit, cut or stall the traffic of one server or a whole cluster
    ScriptedPeer                  a server that plays an exact transcript
    ThreadedRocketMQ              the embedded broker in a thread of its own, for code without an event loop
    RealCluster                   the official name server and brokers as child processes
    simulation                    cluster, clients and network under virtual time

Each tool is loaded when it is first used. The pytest fixtures ``rocketmq``, ``rocketmq_cluster`` and ``simulated_rocketmq``
need no import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ._errors import ClusterError as ClusterError
    from ._jars import find_java as find_java
    from .cluster import ExternalCluster as ExternalCluster
    from .cluster import RealCluster as RealCluster
    from .cluster_proxy import ClusterProxy as ClusterProxy
    from .proxy import Direction as Direction
    from .proxy import FaultProxy as FaultProxy
    from .scripted import Answer as Answer
    from .scripted import Close as Close
    from .scripted import Expect as Expect
    from .scripted import ExpectClose as ExpectClose
    from .scripted import Reset as Reset
    from .scripted import ScriptedPeer as ScriptedPeer
    from .scripted import TranscriptError as TranscriptError
    from .scripted import Wait as Wait
    from .scripted import Write as Write
    from .scripted import routes_to as routes_to
    from .threaded import ThreadedRocketMQ as ThreadedRocketMQ

_NAMES: Final = {
    "_errors": "ClusterError",
    "_jars": "find_java",
    "cluster": "ExternalCluster RealCluster",
    "cluster_proxy": "ClusterProxy",
    "proxy": "Direction FaultProxy",
    "scripted": "Answer Close Expect ExpectClose Reset ScriptedPeer TranscriptError Wait Write routes_to",
    "threaded": "ThreadedRocketMQ",
}
"""The names that are loaded from each module."""
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}
_INTERNAL: Final = frozenset({"find_java"})

__all__ = sorted(_HOMES.keys() - _INTERNAL)


def __getattr__(name: str) -> object:
    if name == "simulation":
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
