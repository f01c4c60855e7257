"""One-way sends, and their pacing for brokers that drop messages when they are overloaded."""

from .oneway import Oneway
from .pacing import MAX_OPEN, OnewayPacing
