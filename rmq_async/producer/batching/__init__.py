"""Gathers messages into batches: messages of one loop iteration, and messages that wait for earlier requests or for ``linger``."""

from .batcher import Batcher, QueueGathering
from .sends import AskingFuture, OrderedSends, UnorderedSends, abandon, may_share
