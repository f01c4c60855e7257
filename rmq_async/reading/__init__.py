"""Reads queues at chosen offsets, without sharing them in a group: ``PullConsumer`` and its streams.

The group consumer also uses the pulls and the checks for lost messages.
"""

from .backoff import may_pass
from .illegal_offset import REPLACED, Asked, Cause, Move, find_move
from .looks import CLOCKS_DIFFER, FirstLook, Looks, Seen, is_at, is_refused, place_of
from .pull import Calls, PendingPull, PulledBody, PullRequest, pull_body, pull_once, start_pull
from .pull_consumer import PullConsumer
from .read_marks import REACH, UNWATCHED, ReadMarks
from .skipped_offsets import SkippedOffsets, deleted_among
