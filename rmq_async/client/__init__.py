"""The client instance that producers, consumers and admins with equal configs share on one event loop."""

from .broker_clock import BrokerClocks, broker_time_in
from .clock_requests import look_at_clock
from .condition import brokers_of, is_silent, last_success_age, loop_problem, name_server_problem
from .group_members import group_members, has_no_members
from .group_requests import GroupListener, GroupRequests
from .instance import ClientInstance
from .lifecycle import ClientUser, LifeCycle, LifeState
from .lite_support import LiteSupport
from .losses import has_master, is_masterless, known_master, lost_offsets
from .name_servers import NameServers
from .names import Names
from .offsets import (
    TOOLS_GROUP,
    check_queue,
    commit_offset,
    committed_offset,
    earliest_store_time_ms,
    epoch_ms,
    known_queue,
    max_offset,
    min_offset,
    search_offset,
    store_time_ms,
    until_readable,
)
from .pull_sizes import end_in, next_offset_in, too_large_frame
from .replication import Replication
from .reply_table import PushedReply
from .retry_requests import body_as_stored, broker_of_message, retry_brokers, send_back, send_copy
from .route_table import RouteTable
from .topic_route import TopicRoute, first_port, malformed_addresses, vip_address
from .trace_records import TRACE_TIMEOUT, TraceRecords, send_trace
from .unique_ids import UniqueIds, longest_id
