"""Serves changes of subscriptions to lite topics, LITE_SUBSCRIPTION_CTL (200071) (``LiteSubscriptionCtlProcessor``)."""

from __future__ import annotations

from rmq_protocol.bodies import SubscriptionGroupConfig, decode_body
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.lite import MAX_LMQ_NAME_SIZE, LiteAction, LiteSubscription, LiteSubscriptions, lmq_name
from rmq_protocol.message import is_blank

from .clients import MAX_NAME_LENGTH
from .lite_subscriptions import LiteSubscriptions as Registry
from .server import Connection
from .service import Processor, Refused, handles
from .state import BrokerState


class LiteControlProcessor(Processor):
    """Serves changes of subscriptions.

    If one change of a request is refused, the changes before it stay. Changes without a client id, group or topic are ignored.
    """

    def __init__(self, state: BrokerState, subscriptions: Registry) -> None:
        self._state = state
        self._subscriptions = subscriptions

    @handles(RequestCode.LITE_SUBSCRIPTION_CTL)
    def control(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        if not command.body:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "Request body is null.")
        changes = decode_body(LiteSubscriptions, command.body).subscription_set
        if not changes:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty.")
        for change in changes:
            if not (is_blank(change.client_id) or is_blank(change.group) or is_blank(change.topic)):
                self._change(connection, change)
        return make_response(command, ResponseCode.SUCCESS)

    def _change(self, connection: Connection, change: LiteSubscription) -> None:
        client_id, group, topic = change.client_id, change.group, change.topic
        for name in (client_id, group):
            if len(name) > MAX_NAME_LENGTH:
                remark = f"the name {name[:80]!r} has {len(name)} characters, the limit is {MAX_NAME_LENGTH}; shorten it"
                raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        names = _light_queues(change)
        match change.action:
            case LiteAction.ADD:
                config = self._consuming(group)
                self._subscriptions.connected(client_id, connection)
                self._subscriptions.add(client_id, config, topic, names, change.offset_option)
            case LiteAction.REMOVE:
                self._subscriptions.remove(client_id, group, topic, names)
            case LiteAction.SET:
                self._consuming(group)
                self._subscriptions.connected(client_id, connection)
                self._subscriptions.replace(client_id, group, topic, names)
            case LiteAction.CLEAR:
                self._subscriptions.remove_client(client_id)

    def _consuming(self, group: str) -> SubscriptionGroupConfig:
        """Return the settings of a group that may consume.

        Raises:
            Refused: With code 604 for other groups.
        """
        config = self._state.groups.find(group)
        if config is None or not config.consume_enable:
            remark = "java.lang.IllegalStateException: Consumer group is not allowed to consume."
            raise Refused(ResponseCode.ILLEGAL_OPERATION, remark)
        return config


def _light_queues(change: LiteSubscription) -> list[str]:
    """Return the names of the light queues, without repetitions. Leave out names that no queue can have."""
    names = dict.fromkeys(lmq_name(change.topic, each) for each in change.lite_topic_set if each)
    return [name for name in names if len(name.encode(errors="replace")) <= MAX_LMQ_NAME_SIZE]
