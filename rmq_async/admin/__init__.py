"""Administration of topics, offsets, messages, clients and groups, for operators and tests.

``__all__`` lists the public names. In addition, the Spark source imports ``cluster_info``, and the command line imports
``is_wanted``.
"""

from .admin import Admin
from .requests import cluster_info as cluster_info
from .results import (
    BrokerOverview,
    ClientConnection,
    ConsumerConnections,
    GroupLag,
    GroupMember,
    GroupOverview,
    OffsetChange,
    Overview,
    QueueLag,
    QueueStats,
    SyncedTopic,
    TopicStats,
)
from .topics import is_wanted as is_wanted

__all__ = [
    "Admin",
    "BrokerOverview",
    "ClientConnection",
    "ConsumerConnections",
    "GroupLag",
    "GroupMember",
    "GroupOverview",
    "OffsetChange",
    "Overview",
    "QueueLag",
    "QueueStats",
    "SyncedTopic",
    "TopicStats",
]
