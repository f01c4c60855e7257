"""The names that code outside this repository binds to: none may go, lose a keyword, or drag in what it does not need."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from importlib.resources import files

import pytest

import rmq_async

pytestmark = pytest.mark.interpreters

NAMES = """
rmq_async.run coro
rmq_async.Message topic body tags keys flag properties delay_level delay deliver_at wait_store sharding_key unique_id
rmq_async.MessageQueue topic broker_name queue_id
rmq_async.MessageExt
rmq_async.SendStatus.SEND_OK
rmq_async.SendStatus.FLUSH_DISK_TIMEOUT
rmq_async.SendStatus.FLUSH_SLAVE_TIMEOUT
rmq_async.SendStatus.SLAVE_NOT_AVAILABLE
rmq_async.SendResult
rmq_async.BatchSendResult
rmq_async.BatchSendResult.results
rmq_async.Producer group namesrv client config
rmq_async.Producer.start
rmq_async.Producer.stop timeout
rmq_async.Producer.aclose timeout
rmq_async.Producer.__aenter__
rmq_async.Producer.send message queue selector key timeout
rmq_async.Producer.send_async message on_success on_error queue selector key timeout
rmq_async.Producer.send_oneway message queue selector key timeout
rmq_async.Producer.send_batch messages queue timeout
rmq_async.Producer.send_batch_async messages on_success on_error queue timeout
rmq_async.Producer.state
rmq_async.Producer.health
rmq_async.ProducerState.NEW
rmq_async.ProducerState.STARTING
rmq_async.ProducerState.RUNNING
rmq_async.ProducerState.STOPPING
rmq_async.ProducerState.STOPPED
rmq_async.ProducerHealth state live ready problems last_success_age unanswered brokers
rmq_async.Problem code text broker queue
rmq_async.BrokerHealth address connected reachable unanswered
rmq_async.Producer.request message queue selector key timeout
rmq_async.Producer.reply request body properties timeout
rmq_async.Producer.recall topic recall_handle
rmq_async.Producer.fetch_publish_queues topic
rmq_async.Producer.flush timeout
rmq_async.TransactionStatus.COMMIT
rmq_async.TransactionStatus.ROLLBACK
rmq_async.TransactionStatus.UNKNOWN
rmq_async.TransactionProducer group execute check max_concurrent_checks namesrv client config
rmq_async.TransactionProducer.send_in_transaction message arg timeout
rmq_async.Selector
rmq_async.select_by_hash
rmq_async.select_best
rmq_async.split_batches messages max_bytes
rmq_async.Hook.before_send context
rmq_async.Hook.after_send context
rmq_async.Hook.check_forbidden context
rmq_async.Hook.before_request address command
rmq_async.Hook.after_request address command response error
rmq_async.Credentials access_key secret_key security_token
rmq_async.FaultTable.V5
rmq_async.FaultTable.V4
rmq_async.select_by_machine_room
rmq_async.select_at_random
rmq_async.ClientConfig namesrv instance_name client_ip route_poll_interval heartbeat_interval connect_timeout request_timeout idle_timeout max_frame_size max_decompressed_size serialize_type credentials tls tls_verify server_hostname allowed_broker_hosts vip_channel namespace namespace_v2 unit_name unit_mode start_without_cluster
rmq_async.ProducerConfig timeout retries async_retries attempt_timeout retry_codes retry_same_queue compress_over compress_type compress_level max_message_size create_topic_key default_topic_queues async_limit oneway_limit broker_window pending_bytes_limit oneway_window stop_timeout retry_another_broker_when_not_store_ok topics latency_fault fault_table detector queue_selector hooks trace
rmq_async.PullConsumer group namesrv client
rmq_async.PullConsumer.start
rmq_async.PullConsumer.stop
rmq_async.PullConsumer.__aenter__
rmq_async.PullConsumer.queues topic
rmq_async.PullConsumer.pull queue offset max_messages tags wait
rmq_async.PullConsumer.read topic start end tags queues
rmq_async.PullConsumer.committed queue
rmq_async.PullConsumer.commit queue offset
rmq_async.PullConsumer.min_offset queue
rmq_async.PullConsumer.max_offset queue
rmq_async.PullConsumer.search_offset queue when
rmq_async.PullResult
rmq_async.PullStatus.FOUND
rmq_async.PullStatus.NO_NEW
rmq_async.PullStatus.NO_MATCH
rmq_async.PullStatus.OFFSET_ILLEGAL
rmq_async.Admin namesrv client
rmq_async.Admin.create_topic topic queues read_queues perm order topic_sys_flag attributes cluster broker
rmq_async.Admin.topic_route topic
rmq_async.Admin.max_offset queue
rmq_async.Admin.min_offset queue
rmq_async.Admin.delete_topic topic cluster
rmq_async.Admin.topics
rmq_async.Admin.topic_stats topic
rmq_async.Admin.cluster_info
rmq_async.Admin.search_offset queue when upper
rmq_async.Admin.earliest_store_time_ms queue
rmq_async.Admin.view_message topic msg_id
rmq_async.Admin.query_message topic key max_num begin end
rmq_async.Admin.producer_connections group
rmq_async.Admin.consumer_connections group
rmq_async.Admin.sync_topics from_broker to_broker topics dry_run
rmq_async.admin.ClientConnection
rmq_async.admin.ConsumerConnections
rmq_async.admin.QueueStats
rmq_async.admin.SyncedTopic
rmq_async.admin.TopicStats
rmq_async.embedded.EmbeddedRocketMQ host port brokers auto_create_topics max_memory
rmq_async.embedded.EmbeddedRocketMQ.start
rmq_async.embedded.EmbeddedRocketMQ.stop
rmq_async.embedded.EmbeddedRocketMQ.namesrv
rmq_async.embedded.EmbeddedRocketMQ.messages topic
rmq_async.embedded.EmbeddedRocketMQ.clear
rmq_async.embedded.EmbeddedRocketMQ.fail_next code n request
rmq_async.embedded.EmbeddedRocketMQ.delay seconds broker
rmq_async.embedded.EmbeddedRocketMQ.stall broker
rmq_async.embedded.EmbeddedRocketMQ.resume broker
rmq_async.embedded.EmbeddedRocketMQ.drop_connections broker
rmq_async.otel.OpenTelemetryHook tracer_provider meter_provider propagator
rmq_async.otel.context_of message propagator context
rmq_async.cli.main
rmq_async.testing.FaultProxy target port buffer max_connections seed
rmq_async.testing.FaultProxy.address
rmq_async.testing.FaultProxy.reset
rmq_async.testing.Direction.latency seconds jitter
rmq_async.testing.Direction.bandwidth bytes_per_second
rmq_async.testing.Direction.cut_after count reset times
rmq_async.testing.Direction.slice size pause
rmq_async.testing.Direction.stall
rmq_async.testing.Direction.resume
rmq_async.testing.Direction.clear
rmq_async.testing.ClusterProxy namesrv seed
rmq_async.testing.ScriptedPeer aside patience
rmq_async.testing.Expect code ext_fields body oneway exact
rmq_async.testing.Answer code remark ext_fields body opaque pieces pause to
rmq_async.testing.TranscriptError
rmq_async.testing.ThreadedRocketMQ brokers
rmq_async.testing.ThreadedRocketMQ.run coroutine
rmq_async.testing.simulation.Simulation seed brokers name_servers faults trace
rmq_async.testing.simulation.Simulation.run main
rmq_async.testing.simulation.Simulation.check
rmq_async.testing.simulation.Simulation.machine name
rmq_async.testing.simulation.Simulation.link a b
rmq_async.testing.simulation.Simulation.violation text
rmq_async.testing.simulation.Simulation.namesrv
rmq_async.testing.simulation.Simulation.now
rmq_async.testing.simulation.Simulation.trace_hash
rmq_async.testing.simulation.Simulation.faults_met
rmq_async.testing.simulation.Simulation.history
rmq_async.testing.simulation.Machine.run factory
rmq_async.testing.simulation.Machine.crash
rmq_async.testing.simulation.Machine.restart
rmq_async.testing.simulation.Machine.power_loss
rmq_async.testing.simulation.Machine.pause
rmq_async.testing.simulation.Machine.resume
rmq_async.testing.simulation.Machine.skew seconds
rmq_async.testing.simulation.Machine.move address
rmq_async.testing.simulation.Link.cut one_way
rmq_async.testing.simulation.Link.heal
rmq_async.testing.simulation.Link.slow seconds
rmq_async.testing.simulation.Link.drop
rmq_async.testing.simulation.Faults kinds rate start end
rmq_async.testing.simulation.Faults.swarm rate start end
rmq_async.testing.simulation.Faults.none
rmq_async.testing.simulation.Event time machine what details
rmq_async.testing.simulation.SimulationError
rmq_async.testing.simulation.KINDS
rmq_async.testing.RealCluster brokers nameservers profile small version broker_conf namesrv_conf directory
"""  # noqa: E501 - one name a line

ERRORS = """
RocketMQError ConfigError InvalidMessageError SelectorError ClientStateError ForkedError WrongLoopError BackpressureError
NameServerError TopicNotFoundError BrokerNotFoundError ConnectError ConnectionLostError RequestTimeoutError BrokerError
SystemBusyError NoPermissionError NotEnoughReplicasError SendError CorruptMessageError ProtocolError OffsetRangeError
ForbiddenError FlowControlError AuthenticationError PermissionDeniedError ReplyTimeoutError TransactionError Attempt
"""

FIELDS = {
    "SendResult": "status msg_id offset_msg_id queue queue_offset transaction_id region_id trace_on recall_handle attempts",
    "TransactionSendResult": "status msg_id offset_msg_id queue queue_offset transaction_id region_id trace_on recall_handle "
    "attempts local_status",
    "BatchSendResult": "status queue queue_offset msg_ids offset_msg_ids attempts results",
    "SendContext": "message queue broker address attempt elapsed result error message_type group mode",
    "PullResult": "status messages corrupt next_offset min_offset max_offset",
    "MessageExt": "topic body tags keys flag properties queue queue_offset commit_log_offset sys_flag body_crc store_size "
    "born_time_ms store_time_ms born_host store_host reconsume_times prepared_transaction_offset msg_id offset_msg_id "
    "transaction_id",
}


def found(dotted: str) -> object:
    """What a dotted name means to somebody who has only imported the package."""
    parts = dotted.split(".")
    thing: object = importlib.import_module(parts[0])
    for part in parts[1:]:
        thing = getattr(thing, part)
    return thing


def test_each_name_is_there_and_takes_its_keywords() -> None:
    for row in NAMES.strip().splitlines():
        dotted, *keywords = row.split()
        thing = found(dotted)
        assert thing is not None, dotted
        if keywords:
            parameters = inspect.signature(thing).parameters  # type: ignore[arg-type]
            named = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
            assert not set(keywords) - set(named), dotted


def test_each_error_is_in_its_module() -> None:
    for name in ERRORS.split():
        error = found(f"rmq_async.errors.{name}")
        assert isinstance(error, type), name
        assert name == "Attempt" or issubclass(error, rmq_async.RocketMQError), name


@pytest.mark.parametrize("owner", FIELDS)
def test_a_result_has_its_attributes(owner: str) -> None:
    assert not [name for name in FIELDS[owner].split() if not hasattr(found(f"rmq_async.{owner}"), name)]


def test_everything_exported_exists() -> None:
    assert rmq_async.__all__ == sorted(rmq_async.__all__)
    assert not [name for name in rmq_async.__all__ if not hasattr(rmq_async, name)]


def test_what_does_not_exist_is_an_attribute_error() -> None:
    assert not hasattr(rmq_async, "nothing_of_the_kind")


def test_producer_options_are_typed_and_an_unknown_one_is_a_type_error() -> None:
    producer = rmq_async.Producer("g", namesrv="127.0.0.1:9876", retries=7, request_timeout=1.5)
    assert (producer.config.retries, producer.client_config.request_timeout) == (7, 1.5)
    with pytest.raises(TypeError, match="retrys"):
        rmq_async.Producer("g", retrys=7)


@pytest.mark.parametrize("package", ["rmq_async", "rmq_protocol"])
def test_type_checkers_find_that_the_package_is_typed(package: str) -> None:
    assert files(package).joinpath("py.typed").is_file()


# -- in an interpreter of its own


def python(program: str, *options: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    ended = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", program], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout.strip()


def test_importing_the_package_loads_no_more_than_a_client_needs() -> None:
    loaded = python("import sys; from rmq_async import *; print(*sys.modules)").split()
    assert {"rmq_async.producer", "rmq_async.admin"} <= set(loaded)
    unwanted = ("embedded", "spark", "outbox", "inbox", "otel", "testing", "cli")
    assert not {f"rmq_async.{part}" for part in unwanted} & set(loaded)
    packages = {
        "click",
        "rich",
        "pytest",
        "hypothesis",
        "psutil",
        "uvloop",
        "sqlalchemy",
        "pyspark",
        "pyarrow",
        "opentelemetry",
    }
    assert not packages & set(loaded)


def test_a_producer_loads_nothing_that_sending_does_not_need() -> None:
    """What takes long to load and is there for compression, other clients or tools. The package alone loads next to nothing."""
    loaded = set(python("import sys; from rmq_async import Producer; print(*sys.modules)").split())
    assert "rmq_async.producer" in loaded
    assert not {"rmq_async.admin", "rmq_async.consumer", "rmq_async.embedded", "rmq_async.otel", "rmq_async.spark"} & loaded
    assert (
        not {"zstandard", "lz4", "lz4.frame", "uvloop", "multiprocessing", "psutil", "xml", "http", "urllib.request"} & loaded
    )
    assert not {"asyncio", "msgspec", "logging"} & set(python("import sys; import rmq_async; print(*sys.modules)").split())


def test_a_name_is_loaded_when_it_is_asked_for() -> None:
    program = """
import sys, rmq_async
before = set(sys.modules)
assert set(rmq_async.__all__) <= set(dir(rmq_async))
assert not any(name.startswith("rmq_async.") for name in before)
error, again = rmq_async.RocketMQError, rmq_async.RocketMQError
print(error is again, "asyncio" in sys.modules, *(name for name in set(sys.modules) - before if name.startswith("rmq_async.")))
"""
    assert python(program) == "True False rmq_async.errors"


def test_the_embedded_broker_is_there_when_it_is_asked_for() -> None:
    program = (
        "import rmq_async; print(rmq_async.embedded.EmbeddedRocketMQ.__module__, rmq_async.embedded is rmq_async.embedded)"
    )
    assert python(program) == "rmq_async.embedded True"


def test_the_test_kit_loads_each_part_when_it_is_asked_for() -> None:
    program = (
        "import sys, rmq_async; testing = rmq_async.testing; before = set(sys.modules); testing.FaultProxy;"
        "print(*[name for name in set(sys.modules) - before if 'testing' in name or 'embedded' in name or 'pytest' in name])"
    )
    assert python(program) == "rmq_async.testing.proxy"


def test_importing_the_command_line_needs_nothing_that_is_not_installed() -> None:
    program = "import sys; sys.modules['click'] = sys.modules['rich'] = None; import rmq_async.cli; print('imported')"
    assert python(program) == "imported"


def test_importing_opens_no_loop_no_socket_and_no_thread() -> None:
    program = """
import asyncio, socket, threading
def refuse(*_, **__): raise AssertionError("at import")
socket.socket.connect = socket.socket.bind = refuse
asyncio.new_event_loop = refuse
import rmq_async, rmq_async.embedded
rmq_async.Producer("g", namesrv="127.0.0.1:9876"), rmq_async.PullConsumer("g"), rmq_async.Admin()
rmq_async.embedded.EmbeddedRocketMQ()
print(threading.active_count())
"""
    assert python(program) == "1"


RUN = """
import asyncio, sys
{hide}
import rmq_async
async def main():
    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__.split(".")[0]
print(rmq_async.run(main()))
async def fail():
    raise LookupError("failed")
try:
    rmq_async.run(fail())
except LookupError as error:
    print(error)
"""


def test_run_uses_uvloop_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert python(RUN.format(hide="")).split() == ["uvloop", "failed"]


def test_run_uses_asyncio_where_uvloop_is_not_installed() -> None:
    assert python(RUN.format(hide="sys.modules['uvloop'] = None")).split() == ["asyncio", "failed"]


def test_run_ends_on_ctrl_c_after_cleaning_up() -> None:
    program = """
import asyncio, os, signal, rmq_async
async def main():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)
    finally:
        await asyncio.sleep(0)
        print("cleaned up")
try:
    rmq_async.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""
    assert python(program).split("\n") == ["cleaned up", "interrupted"]


def test_dir_lists_no_helpers() -> None:
    listed = {name for name in dir(rmq_async) if not name.startswith("__")}
    assert listed == {*rmq_async.__all__, "cli", "embedded", "inbox", "otel", "outbox", "testing"} - {"__version__"}
