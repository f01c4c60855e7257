"""A network of simulated machines: streams as TCP provides them, and their faults."""

from .host import Host as Host
from .link import Link as Link
from .network import SimulatedNetwork as SimulatedNetwork
from .stream import Observer as Observer
