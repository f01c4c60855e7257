"""The handling of a message, from its pull or pop to its outcome: the backlog, the handler calls, and the acknowledgement,
repetition or give-back that follows.
"""

from .ack import Settled, SettledLog, Settling
from .calls import CallDeadlines, HandlerCalls
from .decision import DEAD, Decision
from .dispatch import Dispatcher, HeldLine, Single
from .give_backs import GiveBack, GiveBacks, Report
from .hooks import CallHooks
from .loop_watch import Block, Find, LoopWatch
from .redelivery import Outcomes
from .trace import ConsumeTracer
