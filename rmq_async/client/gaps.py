"""Which gaps between the messages of a queue are no loss.

A pull without a filter that leaves offsets out met a deletion, except in two kinds of topics, which the broker's settings of the
topic show: a compacted one (attribute ``cleanup.policy``) keeps the newest message of each key, and the queue of a static one
leaves numbers out where it goes from one broker to the next. Nothing is asked as long as nothing is missing.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.continuity import gaps_of_mapping, without_ranges
from rmq_protocol.errors import RemoteProtocolError, RocketMQError
from rmq_protocol.headers import GetTopicConfigRequestHeader, to_ext
from rmq_protocol.json_body import decode_body
from rmq_protocol.message import MessageQueue
from rmq_protocol.topics import TopicConfigAndQueueMapping

from ..broker_answers import broker_error
from ..errors import AuthenticationError, NoPermissionError, PermissionDeniedError
from .text import printable

if TYPE_CHECKING:
    from .instance import ClientInstance

__all__ = ["GapTable"]

logger = logging.getLogger(__name__)

FRESH: Final = 10.0
"""Seconds for which settings are believed; a gap in a queue of a static topic is looked up each time."""
MOST: Final = 1024
"""Topics that are kept."""
_POLICY: Final = "cleanup.policy"
_UNKNOWN_THERE: Final = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.TOPIC_NOT_EXIST})
"""Brokers before 5.0 have neither kind of topic; one that was deleted has no kind."""
_NOTHING_SPECIAL: Final = TopicConfigAndQueueMapping("")


class _Settings(NamedTuple):
    config: TopicConfigAndQueueMapping
    until: float


class GapTable:
    """Settings of topics whose queues have gaps."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Settings] = {}

    def is_compacted(self, broker_name: str, topic: str) -> bool:
        """What is known already; no I/O."""
        known = self._known.get((broker_name, topic))
        return known is not None and known.until > monotonic() and _compacted(known.config)

    async def losses(
        self,
        instance: ClientInstance,
        queue: MessageQueue,
        missing: tuple[range, ...],
        *,
        static: bool = False,
        timeout: float | None = None,
        calls: set[asyncio.Future[RemotingCommand]] | None = None,
    ) -> tuple[range, ...]:
        """What of the offsets ``missing`` in an answer to a pull without a filter was deleted.

        ``static``: the answer is about a queue of a static topic. ``timeout``: seconds for asking, default: ``request_timeout``.
        ``calls``: as for ``ClientInstance.ask_broker``. Raises what asking the broker raises; where the user may
        not see the topic's settings, everything missing counts as deleted.
        """
        broker_name = instance.routes.broker_of(queue)
        key = (broker_name, queue.topic)
        known = self._known.get(key)
        if static or known is None or known.until <= monotonic():
            longest = instance.config.request_timeout
            budget = longest if timeout is None else min(timeout, longest)
            config = await _settings(instance, broker_name, queue.topic, budget, calls)
            self._known.pop(key, None)
            self._known[key] = known = _Settings(config, monotonic() + FRESH)
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        if _compacted(known.config):
            return ()
        detail = known.config.mapping_detail
        items = detail.hosted_queues.get(queue.queue_id, ()) if detail is not None else ()
        return without_ranges(missing, gaps_of_mapping(items))


def _compacted(config: TopicConfigAndQueueMapping) -> bool:
    return any(name.removeprefix("+") == _POLICY and value == "COMPACTION" for name, value in config.attributes.items())


async def _settings(
    instance: ClientInstance, broker_name: str, topic: str, timeout: float, calls: set[asyncio.Future[RemotingCommand]] | None
) -> TopicConfigAndQueueMapping:
    header = GetTopicConfigRequestHeader(topic=topic, lo=True)
    command = RemotingCommand(code=RequestCode.GET_TOPIC_CONFIG, ext_fields={**to_ext(header)})
    response, address = await instance.ask_broker(broker_name, topic, command, timeout, any_replica=True, calls=calls)
    if response.code in _UNKNOWN_THERE:
        return _NOTHING_SPECIAL
    error: RocketMQError
    if response.code == ResponseCode.SUCCESS:
        try:
            return decode_body(TopicConfigAndQueueMapping, response.body)
        except RemoteProtocolError as unreadable:
            error = unreadable
    else:
        request = RequestCode.GET_TOPIC_CONFIG.name
        error = broker_error(response.code, response.remark, request=request, broker=broker_name, address=address)
        if not isinstance(error, AuthenticationError | NoPermissionError | PermissionDeniedError):
            raise error
    logger.warning(
        "gaps of topic %s count as losses, since broker %s does not show whether it is compacted: %s",
        instance.names.told(topic),
        address,
        printable(error),
    )
    return _NOTHING_SPECIAL
