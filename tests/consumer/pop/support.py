"""What tests of consumers that pop share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from rmq_async import Consumer
from rmq_async.embedded import EmbeddedRocketMQ

Make = Callable[..., AbstractAsyncContextManager[EmbeddedRocketMQ]]


def popping(server: EmbeddedRocketMQ, handler: Any, name: str = "one", **options: Any) -> Consumer:
    subscribing = {
        key: options.pop(key) for key in ("tags", "dead_letter_on", "batch_size", "timeout", "retry") if key in options
    }
    options = {"start_from": "earliest", "mode": "pop", **options}
    consumer = Consumer("g", namesrv=server.namesrv, instance_name=name, **options)
    consumer.subscribe("T", handler, **subscribing)
    return consumer
