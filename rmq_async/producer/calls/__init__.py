"""Send calls: their attempts, the retry policy, and their results and errors."""

from ..admission import Call, Result
from .delivery import deliver_unconnected
from .dispatch import Dispatch, stopped
from .first_attempt import FirstAttempt, broken_off
from .recovery import Recovery
from .retry_loop import RetryLoop
from .retry_policy import MIN_CAP, connect_cap, is_retriable
