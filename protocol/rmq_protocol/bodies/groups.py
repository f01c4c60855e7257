"""Bodies about subscription groups: their settings on one broker, and checks of their subscriptions."""

from __future__ import annotations

import msgspec

from ..heartbeat import SubscriptionData
from ..java_types import Int, Long
from .tables import DataVersion

__all__ = [
    "CheckClientRequestBody",
    "CustomizedRetryPolicy",
    "ExponentialRetryPolicy",
    "GroupForbidden",
    "GroupRetryPolicy",
    "QuerySubscriptionResponseBody",
    "SimpleSubscriptionData",
    "SubscriptionGroupConfig",
    "SubscriptionGroupList",
    "SubscriptionGroupWrapper",
]


class ExponentialRetryPolicy(msgspec.Struct, frozen=True):
    """A retry policy with growing delays. ``initial``: milliseconds before the first retry, ``max``: maximum in milliseconds,
    ``multiplier``: factor of growth."""

    initial: Long = 5_000
    max: Long = 7_200_000
    multiplier: Long = 2


class CustomizedRetryPolicy(msgspec.Struct, frozen=True):
    """A retry policy with a delay for each retry. ``next``: milliseconds before each retry, preceded by two that are not
    used; the last one holds for all further retries (``CustomizedRetryPolicy.nextDelayDuration``)."""

    next: tuple[Long, ...] = ()


class GroupRetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """The retry policy of a group.

    ``type``: CUSTOMIZED or EXPONENTIAL; brokers only keep the policy, proxies use it. Without a policy of that type they use
    the default of Java's ``CustomizedRetryPolicy`` (``GroupRetryPolicy.getRetryPolicy``).
    """

    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class SimpleSubscriptionData(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    expression_type: str | None = None
    expression: str | None = None
    version: Long = 0


class SubscriptionGroupConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Request of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, response of GET_SUBSCRIPTIONGROUP_CONFIG.

    ``retry_max_times``: retries after the first delivery, before a message goes to the dead-letter topic. ``broker_id``: id of
    the replica that serves the group; ``which_broker_when_consume_slowly``: id of the one that serves it when it reads from
    disk. ``consume_timeout_minute``: minutes; brokers only keep the number. ``attributes``: ``+key`` -> value in a request,
    ``key`` -> value in a response.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int = 1
    retry_max_times: Int = 16
    group_retry_policy: GroupRetryPolicy = GroupRetryPolicy()
    broker_id: Long = 0
    which_broker_when_consume_slowly: Long = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int = 0
    consume_timeout_minute: Int = 15
    subscription_data_set: tuple[SimpleSubscriptionData, ...] | None = None
    attributes: dict[str, str] = {}


class SubscriptionGroupList(msgspec.Struct, frozen=True, rename="camel"):
    """Request of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()


class SubscriptionGroupWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_ALL_SUBSCRIPTIONGROUP_CONFIG. ``forbidden_table``: group -> topic -> bits of the forbidden
    operations."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
    forbidden_table: dict[str, dict[str, Int]] = {}
    data_version: DataVersion | None = None


class CheckClientRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request CHECK_CLIENT_CONFIG, which asks whether the broker accepts the filter of the subscription; brokers
    accept a request without a subscription and filters by tag (``ClientManageProcessor.checkClientConfig``)."""

    client_id: str
    group: str
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None


class QuerySubscriptionResponseBody(msgspec.Struct, frozen=True, rename="camel"):
    """Response of QUERY_SUBSCRIPTION_BY_CONSUMER. ``subscription_data``: None if no connected member subscribes to the topic."""

    group: str = ""
    topic: str = ""
    subscription_data: SubscriptionData | None = None


class GroupForbidden(msgspec.Struct, frozen=True):
    """Response of UPDATE_AND_GET_GROUP_FORBIDDEN. ``readable``: False if the group may not read the topic."""

    topic: str = ""
    group: str = ""
    readable: bool | None = None
