"""Transactional messages, which consumers see only after a local transaction has been committed."""

from .checks import Checks
from .producer import TransactionProducer
