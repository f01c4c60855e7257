"""One-way sends, and the limit on their rate for brokers that drop messages when they are overloaded."""

from .oneway import Oneway
from .pacing import MAX_OPEN, OnewayPacing
