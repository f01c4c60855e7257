"""Routing of messages: the queues of each topic, the choice of a queue per attempt, and the brokers to avoid."""

from .broker_probe import BrokerProbe
from .fault_table import FaultTable, GivenUpError, LatencyTable
from .queue_selection import Overdue, QueueSelection
from .router import Router
from .selectors import (
    QueueChoice,
    Selector,
    checked_choice,
    choice_of,
    hash_of,
    select_at_random,
    select_best,
    select_by_hash,
    select_by_machine_room,
)
from .suspects import FailureTable
from .topic_queues import HeaderSettings, MessageGatherer, Target, TopicQueues
from .topic_table import TopicTable
