"""Transactional messages, which consumers see once a local transaction is committed."""

from __future__ import annotations

from .checks import Checks
from .producer import TransactionProducer

__all__ = ["Checks", "TransactionProducer"]
