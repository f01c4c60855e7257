"""The subscription groups of one broker and the requests for their settings (200, 201, 207, 225, 352)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rmq_protocol import bodies
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import DeleteSubscriptionGroupRequestHeader, GetSubscriptionGroupConfigRequestHeader
from rmq_protocol.validation import SYSTEM_GROUPS

from .attributes import OF_GROUPS, changed_attributes
from .names import group_refusal
from .offsets import OffsetTable
from .server import Connection
from .service import Processor, Refused, handles, header_of
from .topics import FAQ

MAX_GROUPS: Final = 10_000
"""Maximum number of groups, not counting the broker's system groups."""
MAX_GROUP_BYTES: Final = 16 * 1024 * 1024
"""Maximum number of bytes of the settings of all groups, as JSON. Only ``put_all`` checks this limit."""


class SubscriptionGroups:
    """The settings of groups.

    Args:
        auto_create: Whether the first heartbeat or request of a group creates the group.

    Attributes:
        changes: Number of times that a group was created, changed or deleted.
    """

    def __init__(self, *, auto_create: bool = True) -> None:
        self._auto_create = auto_create
        self._groups: dict[str, bodies.SubscriptionGroupConfig] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0
        self.changes = 0
        self.get = self._groups.get
        for name in SYSTEM_GROUPS:
            self._put(bodies.SubscriptionGroupConfig(name), 0)

    def __len__(self) -> int:
        return len(self._groups)

    def all(self) -> dict[str, bodies.SubscriptionGroupConfig]:
        return dict(self._groups)

    def find(self, name: str) -> bodies.SubscriptionGroupConfig | None:
        """Return the group's settings. Create the group if it does not exist.

        Return None if the name is invalid, or if the group does not exist and cannot be created, because the table is full or
        ``auto_create`` is off.
        """
        config = self._groups.get(name)
        if config is None and self._auto_create and group_refusal(name) is None and not self._is_full():
            config = bodies.SubscriptionGroupConfig(name)
            self._put(config, len(bodies.encode_body(config)))
        return config

    def use(self, name: str) -> bodies.SubscriptionGroupConfig:
        """Return the group's settings as ``find`` does.

        Raises:
            Refused: With code 26 if ``find`` returns None.
        """
        config = self.find(name)
        if config is None:
            full = self._auto_create and group_refusal(name) is None
            why = f"this broker has {MAX_GROUPS} groups, the maximum; delete some first" if full else f"\n{FAQ}"
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name[:160]}] does not exist, {why}", {}
            )
        return config

    def put_all(self, configs: Iterable[bodies.SubscriptionGroupConfig]) -> None:
        """Store the settings of new or existing groups.

        Args:
            configs: Settings in which the attributes are changes (``changed_attributes``).

        Raises:
            Refused: With code 29 for an invalid name, and with code 1 for an impossible change of attributes or if a limit would
                be exceeded. No settings are stored in these cases.
        """
        checked = [(merged, self._check(merged)) for merged in map(self._merged, configs)]
        new = [config for config, _ in checked if config.group_name not in self._groups]
        there = len(self._groups) - len(SYSTEM_GROUPS)
        if there + len(new) > MAX_GROUPS:
            remark = (
                f"this broker has {there} groups and cannot take {len(new)} more, the limit is {MAX_GROUPS}; delete some first"
            )
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        grown = sum(size - self._sizes.get(config.group_name, 0) for config, size in checked)
        if grown > 0 and self._size + grown > MAX_GROUP_BYTES:
            remark = (
                f"settings of groups would take {self._size + grown} bytes, the limit of this broker is {MAX_GROUP_BYTES}; "
                "delete some groups"
            )
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        for config, size in checked:
            self._put(config, size)

    def delete(self, name: str) -> None:
        if self._groups.pop(name, None) is not None:
            self._size -= self._sizes.pop(name)
            self.changes += 1

    def _is_full(self) -> bool:
        return len(self._groups) - len(SYSTEM_GROUPS) >= MAX_GROUPS

    def _merged(self, config: bodies.SubscriptionGroupConfig) -> bodies.SubscriptionGroupConfig:
        """Return the settings with the attributes that the group has after the changes."""
        old = self._groups.get(config.group_name)
        before = {} if old is None else old.attributes
        try:
            attributes = changed_attributes(OF_GROUPS, before, config.attributes, is_new=old is None)
        except Refused as refusal:
            raise Refused(refusal.code, f"java.lang.RuntimeException: {refusal.remark}") from None
        return msgspec.structs.replace(config, attributes=attributes)

    def _check(self, config: bodies.SubscriptionGroupConfig) -> int:
        remark = group_refusal(config.group_name)
        if remark is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        return len(bodies.encode_body(config))

    def _put(self, config: bodies.SubscriptionGroupConfig, size: int) -> None:
        name = config.group_name
        self._size += size - self._sizes.get(name, 0)
        self._sizes[name] = size
        self._groups[name] = config
        self.changes += 1


class GroupProcessor(Processor):
    def __init__(self, groups: SubscriptionGroups, *offsets: OffsetTable) -> None:
        self._groups = groups
        self._offsets = offsets

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def put(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        if command.body:
            self._groups.put_all([bodies.decode_body(bodies.SubscriptionGroupConfig, command.body)])
        return make_response(command, ResponseCode.SUCCESS)

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def put_list(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._groups.put_all(bodies.decode_body(bodies.SubscriptionGroupList, command.body).group_config_list)
        return make_response(command, ResponseCode.SUCCESS)

    @handles(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def all(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        groups = self._groups
        table = bodies.SubscriptionGroupWrapper(groups.all(), {}, bodies.DataVersion(0, 0, groups.changes))
        return make_response(
            command, ResponseCode.SUCCESS, None, {"totalGroupNum": str(len(groups))}, bodies.encode_body(table)
        )

    @handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def one(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        config = self._groups.find(header_of(GetSubscriptionGroupConfigRequestHeader, command).group)
        if config is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return make_response(command, ResponseCode.SUCCESS, body=bodies.encode_body(config))

    @handles(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(DeleteSubscriptionGroupRequestHeader, command)
        self._groups.delete(header.groupName)
        if header.cleanOffset:
            for table in self._offsets:
                table.forget_group(header.groupName)
        return make_response(command, ResponseCode.SUCCESS)
