"""Sends the requests of an admin to brokers, whose addresses the name servers provide, and to the name servers themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rmq_protocol.cluster import ClusterInfo
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import MASTER_ID, RequestCode, ResponseCode
from rmq_protocol.errors import shown
from rmq_protocol.route import TopicRouteData
from rmq_protocol.validation import plain

from .. import machine
from .._text import printable
from ..broker_answers import broker_error
from ..client import ClientInstance
from ..errors import BrokerNotFoundError, ConfigError, RocketMQError


async def cluster_info(instance: ClientInstance, deadline: float) -> ClusterInfo:
    """Return the clusters and brokers that the name servers know.

    If the client may start without a cluster, first wait for a cluster.
    """
    if instance.config.start_without_cluster:
        await instance.cluster_probe.wait(deadline)
    return await instance.name_servers.cluster_info(max(deadline - machine.monotonic(), 0.0))


def _checked_name(option: str, given: str | None) -> str | None:
    if given is not None and not isinstance(given, str):
        raise ConfigError(f"{option} must be a name, not {shown(given)}")
    return None if given is None else plain(given)


def masters_of(
    info: ClusterInfo, cluster: str | None = None, broker: str | None = None, *, any_cluster: bool = True
) -> dict[str, str]:
    """Return a mapping from broker name to the address of the master, for one broker, for the brokers of a cluster, or for all
    brokers.

    Raises:
        BrokerNotFoundError: If there is no master.
        ConfigError: For a name that is not a string. With ``any_cluster=False``, also if both names are left out and there are
            several clusters.
    """
    cluster, broker = _checked_name("cluster", cluster), _checked_name("broker", broker)
    if cluster is None and broker is None and len(info.cluster_addr_table) > 1 and not any_cluster:
        raise ConfigError(f"there are several clusters, {_listed(info.cluster_addr_table)}: give cluster= or broker=")
    names = _broker_names(info, cluster, broker)
    masters = {
        name: data.broker_addrs[MASTER_ID]
        for name, data in sorted(info.broker_addr_table.items())
        if name in names and MASTER_ID in data.broker_addrs
    }
    if not masters and broker is not None:
        known = _listed(info.broker_addr_table)
        text = (
            f"no name server knows a master of broker {printable(broker)}; check the name, or start the master (known: {known})"
        )
        raise BrokerNotFoundError(text, broker=broker)
    if not masters:
        of, advice = (f"cluster {printable(cluster)}", "check the name") if cluster else ("any broker", "check namesrv")
        raise BrokerNotFoundError(f"no name server knows a master of {of}; {advice}, or start a broker")
    return masters


def _broker_names(info: ClusterInfo, cluster: str | None, broker: str | None) -> set[str]:
    """Return the names of the brokers to which the request goes.

    Raises:
        BrokerNotFoundError: For a cluster that does not exist or does not have the broker.
    """
    clusters = info.cluster_addr_table
    if broker is not None:
        if cluster is not None and broker not in clusters.get(cluster, ()):
            text = f"cluster {printable(cluster)} has no broker {printable(broker)}; cluster_info() lists them"
            raise BrokerNotFoundError(text, broker=broker)
        return {broker}
    if cluster is None:
        return set(info.broker_addr_table)
    if not clusters.get(cluster):
        raise BrokerNotFoundError(f"no cluster is called {printable(cluster)}; there are: {_listed(clusters)}")
    return set(clusters[cluster])


def brokers_of(route: TopicRouteData) -> dict[str, str]:
    """Return a mapping from broker name to address for the brokers that have the topic. The address is the address of the
    master or, without a master, of the replica with the lowest id.
    """
    names = {data.broker_name for data in route.queue_datas}
    return {
        data.broker_name: data.broker_addrs[min(data.broker_addrs)]
        for data in route.broker_datas
        if data.broker_name in names and data.broker_addrs
    }


async def ask_at(
    instance: ClientInstance, broker: str, address: str, command: RemotingCommand, deadline: float
) -> RemotingCommand:
    """Send one request and return the response, with any code. Errors name the broker."""
    try:
        return await instance.pool.request(address, command, max(deadline - machine.monotonic(), 0.0))
    except RocketMQError as error:
        if error.broker is None:
            error.broker = broker
        raise


async def ask(
    instance: ClientInstance, broker: str, address: str, command: RemotingCommand, deadline: float
) -> RemotingCommand:
    """Send one request and return the response. Raise an error if the response code is not success."""
    response = await ask_at(instance, broker, address, command, deadline)
    check(response, command, broker, address)
    return response


async def everywhere(
    instance: ClientInstance,
    brokers: Mapping[str, str],
    command: RemotingCommand,
    deadline: float,
    *,
    absent: tuple[ResponseCode, str] | None = None,
) -> dict[str, RemotingCommand]:
    """Send one request to all brokers concurrently, and return the responses by broker name.

    Wait for all brokers before raising an error. An error of a request takes precedence over an error in a response; among
    several errors of one kind, raise the first broker's error.

    Args:
        absent: Code, and part of the remark, of a response which reports that the broker does not have the requested object. Such
            a response is left out.
    """
    answers: dict[str, RemotingCommand] = {}
    for name, outcome in (await outcomes(instance, brokers, command, deadline)).items():
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome  # its traceback has this frame
        if absent is None or outcome.code != absent[0] or absent[1] not in (outcome.remark or ""):
            answers[name] = outcome
    for name, response in answers.items():
        check(response, command, name, brokers[name])
    return answers


async def outcomes(
    instance: ClientInstance, brokers: Mapping[str, str], command: RemotingCommand, deadline: float
) -> dict[str, RemotingCommand | BaseException]:
    """Send one request to all brokers concurrently. Wait for all brokers, and return the response or the error of each broker
    by its name.
    """
    calls = [ask_at(instance, name, address, command, deadline) for name, address in brokers.items()]
    return dict(zip(brokers, await asyncio.gather(*calls, return_exceptions=True), strict=True))


async def ask_every_name_server(instance: ClientInstance, command: RemotingCommand, deadline: float) -> None:
    """Send the request to all name servers.

    Raises:
        NameServerError: Unless all name servers respond.
        BrokerError: For a response whose code is not success.
    """
    answers = await instance.name_servers.each(command, max(deadline - machine.monotonic(), 0.0))
    for address, response in answers.items():
        check(response, command, None, address)


def check(response: RemotingCommand, command: RemotingCommand, broker: str | None, address: str | None) -> None:
    """Raise an error if the code of the response to ``command`` is not success."""
    if response.code != ResponseCode.SUCCESS:
        name = RequestCode(command.code).name
        raise broker_error(response.code, response.remark, request=name, broker=broker, address=address)


def _listed(names: Mapping[str, object]) -> str:
    return printable(", ".join(sorted(names)) or "none")
