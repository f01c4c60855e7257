"""The kinds of faults. Each kind defines how a fault begins and ends, and how to check whether the fault had an effect."""

from __future__ import annotations

from functools import partial
from typing import Final

from ..faults import Begin
from . import answers, links, machines, pops, storage
from .effect import Cluster, on, on_some

_ANSWERS: Final = {
    "broker-busy": answers.busy,
    "broker-delay": answers.delay,
    "broker-disorder": answers.disorder,
    "broker-error": answers.error,
    "broker-jitter": answers.jitter,
    "broker-overload": answers.overload,
    "broker-slices": answers.slices,
    "broker-slow-disk": storage.slow_disk,
    "group-refused": answers.not_taken_back,
}
_POPS: Final = {
    "pop-empty": pops.empty,
    "pop-late-revival": pops.late_revival,
    "pop-lost-acks": pops.lost_acks,
    "pop-lost-answers": pops.lost_answers,
    "pop-refused": pops.refused,
    "pop-repeated-revival": pops.repeated_revival,
}
_LINKS: Final = {
    "link-cut": links.cut,
    "link-early-close": links.early_close,
    "link-half-cut": links.half_cut,
    "link-hang": links.hang,
    "link-reset": links.reset,
    "link-slow": links.slow,
}


def beginnings(cluster: Cluster) -> dict[str, Begin]:
    """Return the functions that begin faults, by kind."""
    return {
        **{kind: on_some(lambda: cluster.brokers, strike) for kind, strike in (_ANSWERS | _POPS).items()},
        **{kind: links.on_link(cluster, strike) for kind, strike in _LINKS.items()},
        **_of_processes(cluster),
        **_of_storage(cluster),
        "clock-drift": on(lambda: [*cluster.clients, *cluster.brokers], machines.clock_drift),
        "clock-jump": on(lambda: [*cluster.clients, *cluster.brokers], machines.clock_jump),
        "clock-rate": on(lambda: [*cluster.clients, *cluster.brokers, *cluster.name_servers], machines.clock_rate),
    }


def expiry(cluster: Cluster, topic: str | None = None) -> Begin:
    """Return the function that begins this fault: it deletes the oldest messages of a queue of ``topic`` (None: any user topic)."""
    return on(lambda: cluster.brokers, partial(storage.expire, cluster, topic))


def _of_processes(cluster: Cluster) -> dict[str, Begin]:
    return {
        "broker-crash": on(lambda: cluster.brokers, machines.crash, paused=False),
        "broker-fail-over": on(lambda: cluster.brokers, partial(machines.fail_over, cluster), paused=False),
        "broker-move": on(lambda: cluster.brokers, partial(machines.move_server, cluster), paused=False),
        "broker-pause": on(lambda: cluster.brokers, machines.pause, paused=False),
        "broker-power-loss": on(lambda: cluster.brokers, machines.power_loss, paused=False),
        "client-move": on(lambda: cluster.clients, partial(machines.move_client, cluster)),
        "client-pause": on(lambda: cluster.clients, machines.pause, paused=False),
        "client-slow": on(lambda: cluster.clients, machines.slow),
        "group-no-threads": on_some(lambda: cluster.clients, machines.no_threads),
        "name-server-crash": on(lambda: cluster.name_servers, machines.crash, paused=False),
        "name-server-move": on(lambda: cluster.name_servers, partial(machines.move_server, cluster), paused=False),
        "name-server-pause": on(lambda: cluster.name_servers, machines.pause, paused=False),
        "name-server-redirect": on(lambda: cluster.name_servers, partial(machines.redirect, cluster)),
        "name-server-silent": on(lambda: cluster.name_servers, partial(machines.silent, cluster), paused=False),
    }


def _of_storage(cluster: Cluster) -> dict[str, Begin]:
    return {
        "broker-expire": expiry(cluster),
        "broker-resize": on(lambda: cluster.brokers, partial(storage.resize, cluster), paused=False),
        "broker-truncate": on(lambda: cluster.brokers, partial(storage.truncate, cluster), paused=False),
        "name-server-disagree": on(lambda: cluster.name_servers, partial(storage.disagree, cluster)),
        "name-server-empty": on(lambda: cluster.name_servers, partial(storage.empty, cluster)),
        "name-server-forget": on(lambda: cluster.name_servers, partial(storage.forget, cluster)),
    }
