"""ClientInstance: shared by equal settings, started once, closed by the last to leave, whichever caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from time import monotonic
from typing import Any

import pytest

from rmq_async.client import ClientInstance
from rmq_async.config import ClientConfig
from rmq_async.errors import (
    BrokerNotFoundError,
    ClientStateError,
    ConnectError,
    ForkedError,
    NameServerError,
    RequestTimeoutError,
    WrongLoopError,
)
from rmq_protocol.command import RemotingCommand
from rmq_protocol.ids import unpack_unique_id
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData

from ..support.fakes import Broker, Link, NameServer, Peer, echo, late, route, silence
from ..support.instances import registered
from .support import client, config_of, fork, ours, until

# Sharing.


async def test_equal_settings_share_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with NameServer() as one, NameServer() as two:
        spellings = [f"{one.address};{two.address}", [two.address, one.address], f" {two.address} , {one.address};"]
        instances = await asyncio.gather(*[ClientInstance.acquire(ClientConfig(namesrv=text)) for text in spellings])
        monkeypatch.setenv("NAMESRV_ADDR", f"{one.address};{two.address}")
        instances.append(await ClientInstance.acquire(ClientConfig()))
        assert all(each is instances[0] for each in instances)
        assert instances[0].users == 4
        assert [len(one.links), len(two.links)] == [1, 1]
        for each in instances:
            assert ours()
            await each.release()
        assert ours() == []


async def test_other_settings_make_another_client() -> None:
    async with NameServer() as server, client(server) as one, client(server, instance_name="x") as two:
        assert one is not two
        assert two.client_id == "127.0.0.1@x"
        async with client(server, heartbeat_interval=7.0) as three:
            assert three not in (one, two)


async def test_a_client_that_was_closed_is_not_given_out_again() -> None:
    async with NameServer() as server:
        async with client(server) as one:
            pass
        with pytest.raises(ClientStateError):
            await one.release()
        async with client(server) as two:
            assert two is not one


async def test_one_start_for_all_who_come_together() -> None:
    async with NameServer() as server:
        config = config_of(server)
        instances = await asyncio.gather(*[ClientInstance.acquire(config) for _ in range(50)])
        assert len({id(each) for each in instances}) == 1
        assert server.received == 1
        await asyncio.gather(*[each.release() for each in instances])


# Who we are.


async def test_the_client_is_known_by_its_address_towards_the_name_server() -> None:
    async with NameServer() as server, client(server) as instance:
        assert instance.client_ip == "127.0.0.1"
        assert instance.client_id == f"127.0.0.1@{instance.config.instance_name}"
        assert instance.config.instance_name.startswith(f"{os.getpid()}#")
        assert unpack_unique_id(instance.unique_ids.next()).ip == "127.0.0.1"


async def test_ipv6_works_as_well() -> None:
    server = NameServer()
    server.host = "::1"
    async with server, client(server) as instance:
        assert instance.client_id.startswith("::1@")
        assert unpack_unique_id(instance.unique_ids.next()).ip == "::1"


async def test_a_given_address_goes_into_the_client_id_and_the_message_ids() -> None:
    async with NameServer() as server:
        async with client(server, client_ip="10.9.8.7") as instance:
            assert instance.client_id.startswith("10.9.8.7@")
            assert unpack_unique_id(instance.unique_ids.next()).ip == "10.9.8.7"
        async with client(server, client_ip="my-host") as instance:
            assert instance.client_id.startswith("my-host@")
            assert unpack_unique_id(instance.unique_ids.next()).ip == "127.0.0.1"


# Starting.


async def test_a_start_without_name_servers_says_what_to_give() -> None:
    with pytest.raises(NameServerError, match="no name server is configured"):
        await ClientInstance.acquire(ClientConfig())
    assert (ours(), registered()) == ([], {})


@pytest.mark.virtual_time
async def test_a_start_without_an_answer_ends_in_time_and_leaves_nothing() -> None:
    async with Peer(silence) as silent:
        start = monotonic()
        with pytest.raises(NameServerError, match="no response"):
            await ClientInstance.acquire(config_of(silent, request_timeout=0.3))
        assert monotonic() - start == pytest.approx(0.3, abs=0.01)
        assert (ours(), registered()) == ([], {})
        await until(lambda: silent.link.lost.done())


async def test_a_start_that_is_refused_says_so() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(NameServerError, match="cannot connect"):
            await ClientInstance.acquire(ClientConfig(namesrv=address))
    assert (ours(), registered()) == ([], {})


async def test_any_answer_of_a_name_server_is_good_enough_to_start() -> None:
    async with Peer(lambda link, request: link.reply(request, code=1, remark="what?")) as odd, client(odd) as instance:
        assert instance.users == 1


@pytest.mark.virtual_time
async def test_all_who_wait_for_a_failing_start_fail_and_the_next_one_tries_anew() -> None:
    async with NameServer() as server:
        server.serve = silence
        config = config_of(server, request_timeout=0.2)
        failures = await asyncio.gather(*[ClientInstance.acquire(config) for _ in range(5)], return_exceptions=True)
        assert all(isinstance(failure, NameServerError) for failure in failures)
        assert len({id(failure) for failure in failures}) == 5
        del server.serve
        instance = await ClientInstance.acquire(config)
        await instance.release()


@pytest.mark.parametrize("steps", range(14))
async def test_cancelling_a_start_leaves_nothing(steps: int) -> None:
    async with NameServer() as server:
        call = asyncio.ensure_future(ClientInstance.acquire(config_of(server)))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        outcome = (await asyncio.gather(call, return_exceptions=True))[0]
        if isinstance(outcome, ClientInstance):
            await outcome.release()
        else:
            assert isinstance(outcome, asyncio.CancelledError)
        assert (ours(), registered()) == ([], {})


@pytest.mark.parametrize("steps", range(10))
async def test_cancelling_one_who_starts_does_not_stop_the_others(steps: int) -> None:
    async with NameServer() as server:
        config = config_of(server)
        first = asyncio.ensure_future(ClientInstance.acquire(config))
        second = asyncio.ensure_future(ClientInstance.acquire(config))
        for _ in range(steps):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        instance = await second
        assert instance.users == (1 if first.cancelled() else 2)
        for _ in range(instance.users):
            await instance.release()


@pytest.mark.virtual_time
@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("patience", [0.0, 5.0])
async def test_cancelling_a_release_closes_all_the_same(steps: int, patience: float) -> None:
    async with NameServer() as server, Peer(silence) as broker:
        instance = await ClientInstance.acquire(config_of(server))
        connection = await instance.pool.connect(broker.address, 1.0)
        request = asyncio.ensure_future(connection.request(RemotingCommand(code=1), 30.0))
        await asyncio.sleep(0.01)
        call = asyncio.ensure_future(instance.release(patience))
        for _ in range(steps):
            await asyncio.sleep(0)
        start = monotonic()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        if steps == 0:
            await instance.release()
        assert monotonic() - start < 0.02
        assert not connection.is_open
        assert ours() == []
        assert isinstance((await asyncio.gather(request, return_exceptions=True))[0], Exception)


@pytest.mark.virtual_time
async def test_the_last_release_waits_for_requests_under_way() -> None:
    async with NameServer() as server, Peer(late(0.1, echo)) as broker:
        instance = await ClientInstance.acquire(config_of(server))
        connection = await instance.pool.connect(broker.address, 1.0)
        request = asyncio.ensure_future(connection.request(RemotingCommand(code=1), 5.0))
        await asyncio.sleep(0)
        await instance.release(1.0)
        assert (await request).code == 0


# Asking brokers.


async def test_a_broker_is_found_by_its_name() -> None:
    async with Broker() as broker, NameServer(t=route(broker.address)) as server, client(server) as instance:
        response, address = await instance.ask_broker("broker-a", "t", RemotingCommand(code=30), 1.0)
        assert (response.code, address) == (0, broker.address)
        with pytest.raises(BrokerNotFoundError, match="broker-x") as caught:
            await instance.ask_broker("broker-x", "t", RemotingCommand(code=30), 1.0)
        assert caught.value.broker == "broker-x"
        assert server.asked.count("t") == 2, "a name that is not known is looked for once more"


async def test_a_replica_serves_where_the_master_is_gone() -> None:
    async with Broker() as broker, NameServer() as server, client(server) as instance:
        server.routes["t"] = TopicRouteData(
            queue_datas=(QueueData("broker-a", 4, 4, 6),), broker_datas=(BrokerData("broker-a", {3: "x:1", 2: broker.address}),)
        )
        with pytest.raises(BrokerNotFoundError):
            await instance.ask_broker("broker-a", "t", RemotingCommand(code=11), 1.0)
        _, address = await instance.ask_broker("broker-a", "t", RemotingCommand(code=11), 1.0, any_replica=True)
        assert address == broker.address


@pytest.mark.virtual_time
async def test_errors_name_the_broker_and_refresh_the_route() -> None:
    async with Broker() as broker, NameServer(t=route(broker.address)) as server, client(server) as instance:
        broker.silent = True
        with pytest.raises(RequestTimeoutError) as late:
            await instance.ask_broker("broker-a", "t", RemotingCommand(code=30), 0.1)
        assert (late.value.broker, late.value.address) == ("broker-a", broker.address)
        await until(lambda: server.asked.count("t") == 2)
        await broker.stop()
        await until(lambda: instance.pool.get(broker.address) is None)
        with pytest.raises(ConnectError) as refused:
            await instance.ask_broker("broker-a", "t", RemotingCommand(code=30), 1.0)
        assert refused.value.broker == "broker-a"


@pytest.mark.virtual_time
async def test_a_lost_broker_makes_the_routes_fresh() -> None:
    async with (
        Broker() as one,
        Broker() as two,
        NameServer(t=route(one.address)) as server,
        client(server) as instance,
    ):
        await instance.ask_broker("broker-a", "t", RemotingCommand(code=30), 1.0)
        server.routes["t"] = route(two.address)
        await one.stop()
        await until(lambda: instance.routes.address_of("broker-a") == two.address, 2.0)


# Being asked.


async def test_a_request_of_the_server_goes_to_its_handler() -> None:
    answers: list[RemotingCommand] = []

    def keep(_link: Link, response: RemotingCommand) -> None:
        answers.append(response)

    broker = Broker()
    broker.on_response = keep
    async with broker, NameServer(t=route(broker.address)) as server, client(server) as instance:
        instance.handlers[326] = lambda _connection, request: RemotingCommand(code=0, opaque=request.opaque, flag=1)
        await instance.pool.connect(broker.address, 1.0)
        link = await broker.accepted()
        link.ask(RemotingCommand(code=40, opaque=1, flag=2, ext_fields={"consumerGroup": "g"}))
        link.ask(RemotingCommand(code=326, opaque=2))
        link.ask(RemotingCommand(code=99, opaque=3))
        link.ask(RemotingCommand(code=99, opaque=4, flag=2))
        await until(lambda: len(answers) == 2)
        assert [(answer.opaque, answer.code) for answer in answers] == [(2, 0), (3, 3)]


async def test_a_handler_that_raises_is_reported_and_answered(nothing_left: list[dict[str, Any]]) -> None:
    answers: list[RemotingCommand] = []
    broker = Broker()
    broker.on_response = lambda _link, response: answers.append(response)
    async with broker, NameServer() as server, client(server) as instance:

        def broken(_connection: object, _request: RemotingCommand) -> None:
            raise ZeroDivisionError

        instance.handlers[39] = broken
        await instance.pool.connect(broker.address, 1.0)
        (await broker.accepted()).ask(RemotingCommand(code=39, opaque=5))
        await until(lambda: answers)
        assert (answers[0].opaque, answers[0].code) == (5, 1)
        assert isinstance(nothing_left.pop()["exception"], ZeroDivisionError)


# Where it belongs.


async def test_another_loop_is_refused() -> None:
    async with NameServer() as server, client(server) as instance:
        caught: list[BaseException] = []

        async def elsewhere() -> None:
            try:
                instance.check_usable()
            except WrongLoopError as error:
                caught.append(error)

        thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert len(caught) == 1
        instance.check_usable()


async def test_two_loops_have_clients_of_their_own() -> None:
    async with NameServer() as server, client(server) as instance:
        found: list[ClientInstance] = []

        async def elsewhere() -> None:
            async with client(server) as other:
                found.append(other)

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert found[0] is not instance
        assert found[0].client_id == f"{instance.client_id}#2"


async def test_a_forked_child_is_refused_and_touches_nothing() -> None:
    async with NameServer() as server, client(server) as instance:
        child = fork()
        if child == 0:
            status = 1
            try:
                instance.check_usable()
            except ForkedError:
                status = 0
            finally:
                os._exit(status)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await instance.name_servers.request(RemotingCommand(code=106), 1.0)
        assert len(server.links) == 1


async def test_a_loop_that_was_closed_under_a_client_is_forgotten() -> None:
    async with NameServer() as server:

        def run() -> None:
            loop = asyncio.new_event_loop()
            instance = loop.run_until_complete(ClientInstance.acquire(config_of(server)))
            loop.run_until_complete(instance.pool.aclose())
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

        await asyncio.to_thread(run)
        assert len(registered()) == 1
        async with client(server):
            assert len(registered()) == 1
