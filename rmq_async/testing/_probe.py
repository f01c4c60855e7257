"""Sends requests to servers that may not be ready yet. Each request has its own connection, and a refused connection is an
ordinary outcome.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from rmq_protocol.bodies import KVTable
from rmq_protocol.cluster import decode_cluster_info
from rmq_protocol.command import RemotingCommand, decode_command, encode_command
from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, MASTER_ID, RequestCode, ResponseCode
from rmq_protocol.errors import ProtocolError
from rmq_protocol.frame import FrameDecoder
from rmq_protocol.json_body import decode_body
from rmq_protocol.route import BrokerData, decode_route
from rmq_protocol.signing import SessionCredentials, sign

_TIMEOUT = 2.0


@dataclass(frozen=True)
class Access:
    """The access settings of a cluster.

    Attributes:
        tls: The TLS settings. None means plain connections.
        credentials: The credentials that sign requests. None means unsigned requests.
    """

    tls: ssl.SSLContext | None = None
    credentials: SessionCredentials | None = None


PLAIN = Access()


async def ask(
    address: str, code: int, ext_fields: dict[str, str | None] | None = None, body: bytes = b"", *, access: Access = PLAIN
) -> RemotingCommand | None:
    """Return the response to one request. Return None if no response arrives within 2 s or the exchange fails."""
    if access.credentials is not None:
        ext_fields = {**sign(access.credentials, ext_fields, [body])}
    command = RemotingCommand(code=code, opaque=1, ext_fields=ext_fields, body=body)
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await _exchange(address, command, access.tls)
    except (OSError, EOFError, TimeoutError, ProtocolError):
        return None


async def hurry_registration(broker: str, access: Access = PLAIN) -> None:
    """Make the broker at this address register with its name servers now instead of at its next period (10-30 s).

    Writing ``brokerPermission`` has that effect (AdminBrokerProcessor.updateBrokerConfig); 6 is its default value.
    """
    await ask(broker, RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=6\n", access=access)


async def not_routed(name_server: str, brokers: Iterable[str], *, default_topic: bool, access: Access = PLAIN) -> list[str]:
    """Return the given addresses of brokers and replicas to which the name server does not yet route.

    The name server routes to a broker if the cluster info (106) lists the broker. With ``default_topic``, the route of TBW102
    (105) must also list it, because producers use that route for a topic that does not exist yet.
    """
    known = _addresses(await _listed(name_server, access))
    if default_topic:
        answer = await ask(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": AUTO_CREATE_TOPIC_KEY}, access=access)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return list(brokers)
        known &= _addresses(decode_route(answer.body).broker_datas)
    return [broker for broker in brokers if broker not in known]


async def broker_addresses(name_server: str, access: Access = PLAIN) -> dict[str, str]:
    """Return, by broker name, the address of each master that the name server lists. Return no addresses if it does not
    respond.
    """
    brokers = await _listed(name_server, access)
    return {each.broker_name: each.broker_addrs[MASTER_ID] for each in brokers if MASTER_ID in each.broker_addrs}


async def commit_log_end(broker: str, access: Access = PLAIN) -> int | None:
    """Return the end offset of the broker's commit log in bytes. Return None if the broker does not respond or has no figures
    yet.
    """
    answer = await ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO, access=access)
    if answer is None or answer.code != ResponseCode.SUCCESS:  # in the broker's first second
        return None
    return int(decode_body(KVTable, answer.body).table["commitLogMaxOffset"])


async def _exchange(address: str, command: RemotingCommand, tls: ssl.SSLContext | None) -> RemotingCommand | None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=tls)
    try:
        writer.writelines(encode_command(command))
        decoder = FrameDecoder()
        while data := await reader.read(65536):
            for frame in decoder.feed(data):
                answer = decode_command(frame)
                if answer.is_response and answer.opaque == command.opaque:
                    return answer
        return None
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _listed(name_server: str, access: Access) -> tuple[BrokerData, ...]:
    answer = await ask(name_server, RequestCode.GET_BROKER_CLUSTER_INFO, access=access)
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return ()
    return tuple(decode_cluster_info(answer.body).broker_addr_table.values())


def _addresses(brokers: Iterable[BrokerData]) -> set[str]:
    return {address for each in brokers for address in each.broker_addrs.values()}
