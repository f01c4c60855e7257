"""Ids of clients, by which brokers distinguish producers and consumers, and the instance names in them (``ClientConfig``)."""

from __future__ import annotations


def build_client_id(ip: str, instance_name: str, unit_name: str | None = None, *, stream: bool = False) -> str:
    """Return the id of a client.

    The id is ``ip@instance``, followed by ``@unit`` unless ``unit_name`` is None or blank, and by ``@STREAM`` if ``stream`` is True
    (``ClientConfig.enableStreamRequestType``).
    """
    parts = [ip, instance_name]
    if unit_name and not unit_name.isspace():
        parts.append(unit_name)
    if stream:
        parts.append("STREAM")
    return "@".join(parts)


def build_instance_name(pid: int, nanos: int) -> str:
    """Return the replacement for the instance name DEFAULT, ``pid#nanos`` (``ClientConfig.changeInstanceNameToPID``).

    Args:
        nanos: A number that distinguishes the clients of a process.
    """
    return f"{pid}#{nanos}"
