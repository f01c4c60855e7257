"""Serves QUERY_MESSAGE (12), which finds messages of a topic by key or unique id within a range of store times
(``QueryMessageProcessor``).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import MAX_PROPERTIES_SIZE, MAX_RETRY_TOPIC_LENGTH, RequestCode, ResponseCode
from rmq_protocol.headers import QueryMessageRequestHeader, QueryMessageResponseHeader

from .clock import PendingCall
from .records import keys_of, stored_ms
from .server import Connection
from .service import Processor, Refused, Reply, fields_of, handles, header_of, without_content
from .state import BrokerState
from .store import key_hash

MAX_FOUND: Final = 64
"""Maximum number of messages in one response (``maxMsgsNumBatch``)."""
DEFAULT_FOUND: Final = 32
"""Maximum number of messages for a unique id (``defaultQueryMaxNum``)."""
MAX_BYTES: Final = 12 * 1024 * 1024
"""Maximum number of bytes of the messages in one response, which must fit into a frame. The first message may be larger."""
MAX_LOOKED_AT: Final = 10_000
"""Maximum number of index entries that one query examines."""
INDEX_STEP: Final = 5_000
"""Number of records and keys that are added to the index before the event loop serves other requests."""
MAX_WAITING: Final = 1024
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


class _Query(NamedTuple):
    """A QUERY_MESSAGE request that waits or is served.

    Attributes:
        log_end: Physical offset up to which the index must cover the log.
    """

    connection: Connection
    command: RemotingCommand
    topic: str
    key: str
    begin_ms: int
    end_ms: int
    most: int
    log_end: int


class LookupProcessor(Processor):
    """Serves queries.

    A query waits for earlier queries, and until the index contains the messages that were stored before the query.

    Args:
        reply: The function that sends the responses to queries that have waited.
    """

    def __init__(self, state: BrokerState, reply: Reply) -> None:
        self._state = state
        self._reply = reply
        self._waiting: deque[_Query] = deque()
        self._stepping = PendingCall(self._step)

    def close(self) -> None:
        """Drop the waiting queries."""
        self._waiting.clear()
        self._stepping.cancel()

    @handles(RequestCode.QUERY_MESSAGE)
    def query(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        header = header_of(QueryMessageRequestHeader, command)
        if header.maxNum < 0:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"java.lang.IllegalArgumentException: Illegal Capacity: {header.maxNum}")
        log = self._state.log
        by_id = (command.ext_fields or {}).get(UNIQUE_KEY_QUERY) == "true"
        query = _Query(
            connection,
            without_content(command),
            header.topic,
            header.key,
            header.beginTimestamp,
            header.endTimestamp,
            DEFAULT_FOUND if by_id else min(header.maxNum, MAX_FOUND),
            log.end,
        )
        if len(query.topic) > MAX_RETRY_TOPIC_LENGTH or len(query.key) > MAX_PROPERTIES_SIZE:
            return self._response(query, [])
        if not self._stepping.pending and log.index(INDEX_STEP):
            self._stepping.soon()
            return self._response(query, self._find(query))
        if len(self._waiting) >= MAX_WAITING:
            raise Refused(
                ResponseCode.SYSTEM_BUSY, f"{MAX_WAITING} queries wait for the index, the maximum; repeat the query later"
            )
        self._waiting.append(query)
        self._stepping.soon()
        return None

    def _step(self) -> None:
        """Add a number of records to the index. Serve one query if the index contains the messages that were stored before it."""
        log, waiting = self._state.log, self._waiting
        if waiting and (log.index(INDEX_STEP) or log.keys.end >= waiting[0].log_end):
            query = waiting.popleft()
            if not query.connection.closed and not query.connection.congested:
                self._reply(query.connection, query.command, self._response(query, self._find(query)))
        if waiting:
            self._stepping.soon()

    def _response(self, query: _Query, found: list[bytes]) -> RemotingCommand:
        last = self._state.log.last() if found else None
        fields = fields_of(
            QueryMessageResponseHeader(
                indexLastUpdateTimestamp=stored_ms(last[1]) if last else 0, indexLastUpdatePhyoffset=last[0] if last else 0
            )
        )
        if not found:
            remark = "can not find message, maybe time range not correct"
            return make_response(query.command, ResponseCode.QUERY_NOT_FOUND, remark, fields)
        return make_response(query.command, ResponseCode.SUCCESS, None, fields, b"".join(reversed(found)))

    def _find(self, query: _Query) -> list[bytes]:
        """Return matching records, newest first, within the limits of one response."""
        log, name = self._state.log, self._state.name
        low, high = log.between(query.begin_ms, query.end_ms)
        found: list[bytes] = []
        size = 0
        looked_at = 0
        for position in log.keys.find(key_hash(name, query.topic, query.key), low, high):
            record_and_queue = log.view(position)
            if len(found) >= query.most or looked_at >= MAX_LOOKED_AT:
                break
            looked_at += 1
            if record_and_queue is None:  # the record's topic was deleted
                continue
            record, queue = record_and_queue
            if (queue.broker_name, queue.topic) != (name, query.topic) or query.key not in keys_of(record):
                continue
            size += len(record)
            if found and size > MAX_BYTES:
                break
            found.append(record)
        return found
