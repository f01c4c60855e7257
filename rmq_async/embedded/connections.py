"""Serves heartbeats, unregistrations, checks of subscriptions (34, 35, 46) and queries of client lists (38, 203, 204), and
notifies members of changes (40).
"""

from __future__ import annotations

from collections.abc import Iterable

from rmq_protocol import bodies, headers
from rmq_protocol.bodies import CheckClientRequestBody, decode_body, encode_body
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RETRY_TOPIC_PREFIX, RequestCode, ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.heartbeat import (
    IS_SUB_CHANGE,
    IS_SUPPORT_HEART_BEAT_V2,
    ConsumerData,
    HeartbeatData,
    decode_heartbeat,
)
from rmq_protocol.subscription import TAG

from .calls import ClientCalls
from .clients import Client
from .clock import PendingCall
from .filters import check_condition
from .server import Connection
from .service import Processor, Refused, handles, header_of
from .state import BrokerState
from .topics import UNIT_SUBSCRIBED


class ClientProcessor(Processor):
    """Serves the requests of clients about groups.

    However many changes one loop iteration makes, the members of a group are notified once. They are not notified if the
    group's settings disable it or if the group consumes by broadcast.
    """

    def __init__(self, state: BrokerState, calls: ClientCalls, *, property_filter: bool) -> None:
        self._state = state
        self._property_filter = property_filter
        self._calls = calls
        self.listed: dict[str, tuple[str, ...]] = {}
        """Client ids, by group, that the response to request 38 lists in place of the members."""
        self._changed: dict[str, None] = {}
        self._notifying = PendingCall(self._notify)
        state.clients.changed = self._group_changed

    def close(self) -> None:
        """Drop the notifications that wait to be sent."""
        self._changed.clear()
        self._notifying.cancel()

    @handles(RequestCode.HEART_BEAT)
    def heartbeat(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        try:
            data = decode_heartbeat(command.body)
        except RemoteProtocolError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        changed = False
        for consumer in data.consumer_data_set:
            changed |= self._add_consumer(consumer, data, connection, command)
        for producer in data.producer_data_set:
            self._state.clients.add_producer(producer.group_name, self._client(data, connection, command))
        ext: dict[str, str | None] = {
            IS_SUPPORT_HEART_BEAT_V2: "true",
            IS_SUB_CHANGE: "true" if changed or not data.heartbeat_fingerprint else "false",
        }
        return make_response(command, ResponseCode.SUCCESS, None, ext)

    def _add_consumer(
        self, consumer: ConsumerData, data: HeartbeatData, connection: Connection, command: RemotingCommand
    ) -> bool:
        """Add a consumer. Return whether the group's previous heartbeat had a different fingerprint.

        A group with an invalid name is ignored, as on real brokers. A new group is also ignored if the table of groups is full.
        """
        state, name, fingerprint = self._state, consumer.group_name, data.heartbeat_fingerprint
        config = state.groups.find(name)
        if config is None:
            return False
        sys_flag = UNIT_SUBSCRIBED if consumer.unit_mode else 0
        state.topics.ensure(RETRY_TOPIC_PREFIX + name, config.retry_queue_nums, sys_flag)
        state.clients.add_consumer(
            consumer,
            self._client(data, connection, command),
            without_subscriptions=data.without_sub and fingerprint != 0,
        )
        return state.clients.fingerprint_changed(name, fingerprint)  # not stored if add_consumer raised Refused

    def _client(self, data: HeartbeatData, connection: Connection, command: RemotingCommand) -> Client:
        return Client(data.client_id, connection, command.language, command.version)

    @handles(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = headers.from_ext(headers.UnregisterClientRequestHeader, command.ext_fields, lenient=True)
        if header.producerGroup is not None:
            self._state.clients.remove_producer(header.producerGroup, header.clientID)
        if header.consumerGroup is not None:
            self._state.clients.remove_consumer(header.consumerGroup, header.clientID, connection)
        return make_response(command, ResponseCode.SUCCESS, None, {})

    @handles(RequestCode.CHECK_CLIENT_CONFIG)
    def check_client(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        if command.body:
            subscription = decode_body(CheckClientRequestBody, command.body).subscription_data
            if subscription is not None:
                kind = subscription.expression_type or TAG
                check_condition(subscription.sub_string or "", kind, property_filter=self._property_filter)
        return make_response(command, ResponseCode.SUCCESS)

    @handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_ids(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = header_of(headers.GetConsumerListByGroupRequestHeader, command).consumerGroup
        group = self._state.clients.consumers.get(name)
        ids = self.listed.get(name, () if group is None else group.ids())
        if not ids:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name[:160]}", {})
        body = bodies.GetConsumerListByGroupResponseBody(ids)
        return make_response(command, ResponseCode.SUCCESS, None, {}, encode_body(body))

    @handles(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = header_of(headers.GetConsumerConnectionListRequestHeader, command).consumerGroup
        group = self._state.clients.consumers.get(name)
        if group is None:
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:160]}] not online")
        body = bodies.ConsumerConnection(
            connection_set=_connections(group.members.values()),
            subscription_table=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return make_response(command, ResponseCode.SUCCESS, body=encode_body(body))

    @handles(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producer_connections(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = header_of(headers.GetProducerConnectionListRequestHeader, command).producerGroup
        members = self._state.clients.producers.get(name)
        if members is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name[:160]}] not exist")
        body = bodies.ProducerConnection(_connections(members.values()))
        return make_response(command, ResponseCode.SUCCESS, body=encode_body(body))

    def _group_changed(self, group: str) -> None:
        self._changed[group] = None
        self._notifying.soon()

    def _notify(self) -> None:
        groups, self._changed = self._changed, {}
        for name in groups:
            config = self._state.groups.get(name)
            if config is None or config.notify_consumer_ids_changed_enable:
                self.notify_members(name)

    def notify_members(self, name: str) -> None:
        """Notify the members of the group, if there are any."""
        group = self._state.clients.consumers.get(name)
        for connection in () if group is None else dict.fromkeys(member.connection for member in group.members.values()):
            self._calls.oneway(connection, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name})


def _connections(members: Iterable[Client]) -> tuple[bodies.Connection, ...]:
    return tuple(
        bodies.Connection(member.client_id, member.connection.remote, member.language.name, member.version)
        for member in members
    )
