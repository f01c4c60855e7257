"""Namespaces that are a prefix ``namespace%`` of the names of topics and groups (``NamespaceUtil``).

The prefix comes after ``%RETRY%`` and ``%DLQ%``. System topics, and groups whose names begin with CID_RMQ_SYS_, have none.
The other kind of namespaces (``namespace_v2``) does not change names: requests have them in the extFields ``ns`` and ``nsd``.
"""

from __future__ import annotations

from typing import Final

from .constants import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from .validation import is_system_topic

_SEPARATOR: Final = "%"
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def with_namespace(namespace: str, resource: str) -> str:
    """Return the name of the topic or group ``resource`` in ``namespace``.

    ``resource`` is returned unchanged if one of the arguments is empty, or if ``resource`` already belongs to the namespace, is a
    system topic or begins with CID_RMQ_SYS_.
    """
    if not namespace or not resource or _is_system(resource) or has_namespace(resource, namespace):
        return resource
    prefix, name = _split(resource)
    return prefix + namespace + _SEPARATOR + name


def with_namespace_and_retry(namespace: str, group: str) -> str:
    """Return the retry topic of ``group`` in ``namespace``. Return "" if the group is empty."""
    return RETRY_TOPIC_PREFIX + with_namespace(namespace, group) if group else ""


def without_namespace(resource: str, namespace: str | None = None) -> str:
    """Return ``resource`` without its namespace. If ``namespace`` is given, no other namespace is removed."""
    if _is_system(resource) or (namespace is not None and not has_namespace(resource, namespace)):
        return resource
    prefix, name = _split(resource)
    at = name.find(_SEPARATOR)
    return prefix + name[at + 1 :] if at > 0 else resource


def has_namespace(resource: str, namespace: str) -> bool:
    if not namespace or _is_system(resource):
        return False
    return without_retry_and_dlq(resource).startswith(namespace + _SEPARATOR)


def namespace_of(resource: str) -> str:
    """Return the namespace of a name. Return "" if it has none."""
    name = "" if _is_system(resource) else without_retry_and_dlq(resource)
    return name[: max(name.find(_SEPARATOR), 0)]


def without_retry_and_dlq(resource: str) -> str:
    return _split(resource)[1]


def is_retry_topic(resource: str) -> bool:
    return resource.startswith(RETRY_TOPIC_PREFIX)


def is_dlq_topic(resource: str) -> bool:
    return resource.startswith(DLQ_TOPIC_PREFIX)


def _split(resource: str) -> tuple[str, str]:
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if resource.startswith(prefix):
            return prefix, resource[len(prefix) :]
    return "", resource


def _is_system(resource: str) -> bool:
    return is_system_topic(resource) or resource.startswith(_SYSTEM_GROUP_PREFIX)
