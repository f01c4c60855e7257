"""JSON bodies of requests and responses, named as the Java classes; ``ClusterInfo``, ``HeartbeatData``, ``TopicRouteData`` and
``TopicConfig`` have modules of their own beside this package.

All of them can be decoded and encoded: ``decode_body(TopicStatsTable, body)`` raises RemoteProtocolError for another body,
``encode_body(table, standard=False)`` writes the form of the official servers, ``encode_body(request)`` standard JSON. Values
given as defaults stand for members that the JSON does not have.
"""

from __future__ import annotations

from ..json_body import decode_body, encode_body
from .access import (
    AclInfo,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
)
from .acks import (
    MAX_ACK_SPAN,
    BatchAck,
    BatchAckMessageRequestBody,
    pack_bits,
    unpack_bits,
)
from .assignment import (
    MessageQueueAssignment,
    MessageRequestModeSerializeWrapper,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from .brokers import (
    BrokerMemberGroup,
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeQueueData,
    GetBrokerMemberGroupResponseBody,
    QueryConsumeQueueResponseBody,
)
from .connections import (
    Connection,
    ConsumerConnection,
    GetConsumerListByGroupResponseBody,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from .groups import (
    CheckClientRequestBody,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupForbidden,
    GroupRetryPolicy,
    QuerySubscriptionResponseBody,
    SimpleSubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from .locks import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from .offsets import (
    ConsumerOffsetSerializeWrapper,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumerStatusBody,
    MessageQueueForC,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    TopicOffset,
    TopicStatsTable,
    decode_reset_offsets,
)
from .running import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    PopProcessQueueInfo,
    ProcessQueueInfo,
)
from .tables import (
    DataVersion,
    GroupList,
    KVTable,
    TopicList,
)
from .topics import (
    CreateTopicListRequestBody,
    TopicConfigSerializeWrapper,
)

__all__ = [
    "MAX_ACK_SPAN",
    "AclInfo",
    "BatchAck",
    "BatchAckMessageRequestBody",
    "BrokerMemberGroup",
    "BrokerStatsData",
    "BrokerStatsItem",
    "CheckClientRequestBody",
    "Connection",
    "ConsumeMessageDirectlyResult",
    "ConsumeQueueData",
    "ConsumeStats",
    "ConsumeStatsList",
    "ConsumeStatus",
    "ConsumerConnection",
    "ConsumerOffsetSerializeWrapper",
    "ConsumerRunningInfo",
    "CreateTopicListRequestBody",
    "CustomizedRetryPolicy",
    "DataVersion",
    "ExponentialRetryPolicy",
    "GetBrokerMemberGroupResponseBody",
    "GetConsumerListByGroupResponseBody",
    "GetConsumerStatusBody",
    "GroupForbidden",
    "GroupList",
    "GroupRetryPolicy",
    "KVTable",
    "LockBatchRequestBody",
    "LockBatchResponseBody",
    "MessageQueueAssignment",
    "MessageQueueForC",
    "MessageRequestModeSerializeWrapper",
    "OffsetWrapper",
    "PolicyEntryInfo",
    "PolicyInfo",
    "PopProcessQueueInfo",
    "ProcessQueueInfo",
    "ProducerConnection",
    "ProducerInfo",
    "ProducerTableInfo",
    "QueryAssignmentRequestBody",
    "QueryAssignmentResponseBody",
    "QueryConsumeQueueResponseBody",
    "QueryConsumeTimeSpanBody",
    "QueryCorrectionOffsetBody",
    "QuerySubscriptionResponseBody",
    "QueueTimeSpan",
    "ResetOffsetBody",
    "ResetOffsetBodyForC",
    "SetMessageRequestModeRequestBody",
    "SimpleSubscriptionData",
    "SubscriptionGroupConfig",
    "SubscriptionGroupList",
    "SubscriptionGroupWrapper",
    "TopicConfigSerializeWrapper",
    "TopicList",
    "TopicOffset",
    "TopicStatsTable",
    "UnlockBatchRequestBody",
    "UserInfo",
    "decode_body",
    "decode_reset_offsets",
    "encode_body",
    "pack_bits",
    "unpack_bits",
]
