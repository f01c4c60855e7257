"""Users and rights of brokers with authentication (5.3 and later)."""

from __future__ import annotations

import msgspec

__all__ = ["AclInfo", "PolicyEntryInfo", "PolicyInfo", "UserInfo"]


class UserInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A user of a broker.

    ``user_type``: Super or Normal. ``user_status``: enable or disable. Brokers return the password too (``UserConverter``).
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntryInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A right of a policy.

    ``resource``: e.g. ``Topic:T``. ``actions``: some of Pub, Sub, Create, Update, Delete, Get, List, Any and All (``Action``).
    ``decision``: Allow or Deny.
    """

    resource: str | None = None
    actions: tuple[str, ...] = ()
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A policy: rights of one type. ``policy_type``: Custom or Default."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] = ()


class AclInfo(msgspec.Struct, frozen=True):
    """The rights of a user. ``subject``: ``User:name``."""

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] = ()
