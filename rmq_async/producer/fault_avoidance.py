"""Makes the queue selection of a producer, which avoids brokers, from the producer's settings."""

from __future__ import annotations

from collections.abc import Mapping

from ..client import ClientInstance, vip_address
from .config import ProducerConfig
from .routing import BrokerProbe, FailureTable, LatencyTable, Overdue, QueueSelection, TopicQueues, select_best


def queue_selection_of(
    config: ProducerConfig, instance: ClientInstance, queues_by_topic: Mapping[str, TopicQueues], owner: object
) -> QueueSelection | None:
    """Return the queue selection for the settings. Return None if plain round robin is sufficient.

    Args:
        queues_by_topic: A mapping of topics to their queues that is always current.
        owner: The object that identifies the producer's entries in the connections' request tables.
    """
    if config.latency_fault is False:
        return None if config.queue_selector is select_best else QueueSelection(config.queue_selector, None)
    routes = instance.routes
    overdue = Overdue(instance.pool, owner, config.fault_table.patience)
    vip = instance.config.vip_channel

    def busy(broker: str) -> bool:
        # ``queues_by_topic`` would be too slow here: this is called for each send while the broker is on trial.
        address = routes.address_of(broker)
        return address is not None and overdue.waits(vip_address(address) if vip else address)

    def named(broker: str) -> bool:
        known = [routes.cached(topic) for topic in routes.topics]
        return any(
            route.broker_of(queue) == broker
            for route in known
            if route is not None and broker in route.addresses
            for queue in route.publish_queues
        )

    def topic_on(broker: str) -> str | None:
        return next(
            (topic_queues.route.topic for topic_queues in queues_by_topic.values() if broker in topic_queues.brokers), None
        )

    if config.latency_fault == "failures":
        return QueueSelection(config.queue_selector, FailureTable(busy, routes.address_of), overdue, named, queues_by_topic)
    faults = LatencyTable(config.fault_table, busy, routes.address_of)
    selection = QueueSelection(config.queue_selector, faults, overdue, named, queues_by_topic)
    if config.detector:
        selection.detector = BrokerProbe(instance, faults, topic_on)
    return selection
