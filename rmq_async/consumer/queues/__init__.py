"""Members that pull: the queues that a member holds, from the assignment to the release, and their pulls."""

from .pull_session import PullSession
