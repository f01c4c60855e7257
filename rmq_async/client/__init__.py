"""What producers, consumers and admins of one process share."""

from __future__ import annotations

from .instance import ClientInstance, ServerRequestHandler
from .name_servers import NameServers
from .route_table import RouteTable, TopicRoute
from .unique_ids import UniqueIds

__all__ = ["ClientInstance", "NameServers", "RouteTable", "ServerRequestHandler", "TopicRoute", "UniqueIds"]
