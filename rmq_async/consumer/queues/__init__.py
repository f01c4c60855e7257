"""Pull members of a group: the queues that a member holds, from assignment to release, and the pulls of these queues."""

from .pull_session import PullSession
