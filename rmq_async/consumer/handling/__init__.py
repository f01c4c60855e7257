"""From a pulled or popped message to its outcome: the backlog, the calls of handlers, and what is acknowledged, repeated or given
back.
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
