"""Reading without handlers: the messages that iterators and ``receive()`` have handed out."""

from .in_hand import ByHand, HandDispatcher
from .iterators import BatchIterator, MessageIterator
