"""The brokers that a simulated name server knows, and its wrong data about them."""

from __future__ import annotations

from msgspec.structs import replace

from rmq_protocol.constants import MASTER_ID

from ...embedded import Connection, Holder, Registration, Registrations


class DoubtfulRegistrations(Registrations):
    """Registrations of a name server that may forget brokers, and disagree with them about the number of queues.

    Attributes:
        forgotten: Names of brokers that it does not know and whose registrations it drops.
        more: Number of queues that it reports for a topic in addition to the registered ones; below 0 for fewer, but at least
            one is left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: dict[str, None] = {}
        self.more = 0
        self.differences = 0
        """Number of answers about topics and brokers that were not what brokers had registered."""

    def register(self, registration: Registration) -> None:
        if registration.broker_name not in self.forgotten:
            super().register(registration)

    def knows(self, broker_name: str, address: str) -> bool:
        """Return whether a broker is listed under its address as a master; a forgotten one is not."""
        entry = None if broker_name in self.forgotten else self._entries.get(broker_name)
        return entry is not None and entry.address == address and entry.broker_id == MASTER_ID

    def holders(self, topic: str, connection: Connection) -> list[Holder]:
        known = super().holders(topic, connection)
        shown = [self._shown(holder) for holder in known if holder.broker_name not in self.forgotten]
        self.differences += shown != known
        return shown

    def brokers(self, connection: Connection) -> dict[str, dict[int, str]]:
        known = super().brokers(connection)
        shown = {name: addresses for name, addresses in known.items() if name not in self.forgotten}
        self.differences += shown != known
        return shown

    def _shown(self, holder: Holder) -> Holder:
        if not self.more:
            return holder
        config = holder.config
        read, write = (max(1, number + self.more) for number in (config.read_queue_nums, config.write_queue_nums))
        return holder._replace(config=replace(config, read_queue_nums=read, write_queue_nums=write))
