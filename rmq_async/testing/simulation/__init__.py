"""Simulates a RocketMQ cluster, its clients and the network between them in one thread, under virtual time. A seed determines
the whole run.
"""

from .errors import SimulationError as SimulationError
from .faults import GROUP_KINDS as GROUP_KINDS
from .faults import KINDS as KINDS
from .faults import POP_KINDS as POP_KINDS
from .faults import Faults as Faults
from .history import Event as Event
from .loop import SimulatedLoop as SimulatedLoop
from .machines import Machine as Machine
from .network import Link as Link
from .running import run_task as run_task
from .scheduler import Scheduler as Scheduler
from .seeds import Outcome as Outcome
from .seeds import SeedRun as SeedRun
from .seeds import minimised as minimised
from .seeds import run_seed as run_seed
from .simulation import Simulation as Simulation

__all__ = [
    "GROUP_KINDS",
    "KINDS",
    "POP_KINDS",
    "Event",
    "Faults",
    "Link",
    "Machine",
    "Simulation",
    "SimulationError",
]
