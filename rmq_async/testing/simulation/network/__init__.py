"""A network of simulated machines. It provides TCP-like streams and their faults."""

from .host import Host as Host
from .link import Link as Link
from .network import SimulatedNetwork as SimulatedNetwork
from .stream import Observer as Observer
