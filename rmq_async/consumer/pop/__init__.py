"""Members of a group that pop. Brokers give each message to one member for a limited time, and members share no queues.

``core`` receives messages, acknowledges them, gives them back and extends their leases. ``pop_session`` adds the handlers of a
consumer.
"""

from .pop_session import PopSession
