"""Settings are checked when they are made, and the error names the one that is wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async import ClientConfig, ConfigError, Credentials, FaultTable, Hook, Producer, ProducerConfig
from rmq_protocol import compression


class Misspelt(Hook):
    def before_sent(self, context: object) -> None: ...


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"namesrv": "no-port"}, "no-port"),
        ({"namesrv": "host:0"}, "host:0"),
        ({"namesrv": "host:70000"}, "host:70000"),
        ({"namesrv": ["a:1", "b"]}, "'b'"),
        ({"request_timeout": 0}, "request_timeout"),
        ({"connect_timeout": -1}, "connect_timeout"),
        ({"heartbeat_interval": float("nan")}, "heartbeat_interval"),
        ({"route_poll_interval": "30"}, "route_poll_interval"),
        ({"max_frame_size": 10}, "max_frame_size"),
        ({"serialize_type": "xml"}, "xml"),
        ({"instance_name": ""}, "instance_name"),
        ({"client_ip": 5}, "client_ip"),
        ({"namesrv": 5}, "namesrv"),
        ({"request_timeout": 10**400}, "request_timeout"),
        ({"request_timeout": -(2**70)}, r"must be above 0 seconds, not -1180591620717411303424"),
        ({"request_timeout": -(10**5000)}, "request_timeout"),
        ({"namesrv": "h:" + "1" * 5000}, "host:port"),
        ({"namesrv": "[]:80"}, "host:port"),
        ({"namesrv": "[::1:80"}, "host:port"),
        ({"namesrv": "http://a:80"}, "host:port"),
        ({"namesrv": "a b:80"}, "host:port"),
        ({"serialize_type": 10**5000}, "serialize_type"),
        ({"max_frame_size": 10**5000}, "max_frame_size"),
        ({"client_ip": 10**5000}, "client_ip"),
        ({"vip_channel": 1}, "vip_channel must be True or False"),
        ({"unit_mode": "yes"}, "unit_mode"),
        ({"unit_name": ""}, "unit_name"),
        ({"unit_name": 7}, "unit_name"),
        ({"namespace": ""}, "namespace must be 1 to 100 characters"),
        ({"credentials": Credentials}, "credentials must be Credentials, not the class Credentials"),
        ({"namespace": "a%b"}, "namespace"),
        ({"namespace": "a b"}, "namespace"),
        ({"namespace": "n" * 101}, "namespace"),
        ({"namespace": 7}, "namespace"),
        ({"namespace": "rmq_sys_x"}, "begins with a reserved prefix"),
        ({"namespace": "CID_RMQ_SYS_x"}, "begins with a reserved prefix"),
        ({"namespace_v2": "ü"}, "namespace_v2"),
        ({"namespace_v2": 10**5000}, "namespace_v2"),
        ({"namespace": "a", "namespace_v2": "b"}, "give only one of them"),
        ({"idle_timeout": 1e9}, "idle_timeout must be a number of seconds below 1000000000, not 1000000000.0"),
        ({"instance_name": "\ud800"}, "instance_name must be a str that UTF-8 can encode"),
        ({"client_ip": "\ud800"}, "client_ip"),
        ({"unit_name": "\ud800"}, "unit_name"),
        ({"server_hostname": "\ud800", "tls": True}, "server_hostname"),
    ],
)
def test_a_wrong_client_setting_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ClientConfig(**options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"timeout": 0}, "timeout"),
        ({"retries": -1}, "retries"),
        ({"retries": True}, "retries"),
        ({"attempt_timeout": 0}, "attempt_timeout"),
        ({"compress_type": "rar"}, "rar"),
        ({"compress_type": "zlib", "compress_level": 10}, "compress_level must be 0 to 9 for zlib, not 10"),
        ({"compress_type": "zstd", "compress_level": 0}, "compress_level must be 1 to 22 for zstd, not 0"),
        ({"max_message_size": 1 << 30}, "max_message_size"),
        ({"async_limit": 0}, "async_limit"),
        ({"oneway_window": -1}, "oneway_window"),
        ({"create_topic_key": ""}, "create_topic_key"),
        ({"create_topic_key": " "}, "create_topic_key: topic is blank"),
        ({"create_topic_key": "\ud800"}, "create_topic_key: topic"),
        ({"retry_codes": 2}, "retry_codes"),
        ({"timeout": 10**400}, "timeout"),
        ({"retries": 10**5000}, "retries"),
        ({"compress_type": 10**5000}, "compress_type"),
        ({"retry_codes": 10**5000}, "retry_codes"),
        *(({"retry_codes": codes}, "retry_codes") for codes in ("2", "", b"2")),
        ({"send_smart_msg": 1}, "send_smart_msg"),
        ({"retry_another_broker_when_not_store_ok": None}, "retry_another_broker_when_not_store_ok"),
        ({"topics": "orders"}, "topics must be a list or tuple"),
        ({"topics": 7}, "topics"),
        ({"hooks": 7}, "hooks must be a sequence"),
        ({"hooks": [object()]}, "is not a Hook object"),
        ({"hooks": [Hook]}, "Hook'> is a class; pass an instance"),
        ({"hooks": [Misspelt()]}, "would never be called: its class must define one of before_send, "),
        (
            {"hooks": [SimpleNamespace(after_send=partial(asyncio.sleep, 0))]},
            r"after_send\(\) of hook .* must be a plain function",
        ),
        ({"queue_selector": 7}, "queue_selector must be a function"),
        ({"queue_selector": dict}, "queue_selector"),
        ({"latency_fault": "on"}, "latency_fault"),
        ({"fault_table": {}}, "fault_table must be a FaultTable, not dict"),
        ({"fault_table": FaultTable}, "fault_table must be a FaultTable, not the class FaultTable"),
        ({"detector": True}, "detector=True needs latency_fault=True"),
        ({"trace": 1}, "trace"),
        ({"trace": ""}, "trace: topic is blank"),
        ({"topics": ["a\nb"]}, "topics: topic"),
        ({"topics": [1]}, "topics: topic"),
    ],
)
def test_a_wrong_producer_setting_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ProducerConfig(**options)
    with pytest.raises(ValueError, match=named):
        Producer("group", **options)


def test_a_config_of_another_type_is_refused_before_anything_starts() -> None:
    with pytest.raises(TypeError, match="client must be a ClientConfig, not dict"):
        Producer("group", client={"namesrv": "a:1"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config must be a ProducerConfig, not ClientConfig"):
        Producer("group", config=ClientConfig())  # type: ignore[arg-type]


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="time_out"):
        Producer("group", time_out=3)


def test_a_compression_that_is_not_installed_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "lz4_frame", None)
    with pytest.raises(ConfigError, match=r"rmq-async\[compression\]"):
        Producer("group", compress_type="lz4")


def test_name_servers_compare_as_a_set_and_default_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "b:2;a:1")
    resolved = ClientConfig().resolved()
    assert resolved.namesrv == ("a:1", "b:2")
    assert resolved == ClientConfig(namesrv=["a:1", "b:2", "a:1"]).resolved()
    assert resolved == ClientConfig(namesrv="a:1, b:2").resolved()
    assert resolved != ClientConfig(namesrv="a:1").resolved()


def test_the_instance_name_is_drawn_once_per_process() -> None:
    assert ClientConfig().instance_name == ClientConfig().instance_name
    code = "from rmq_async import ClientConfig as C; print(C().instance_name, C().instance_name)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert other[0] == other[1] != ClientConfig().instance_name
    assert ClientConfig().instance_name.split("#")[0] == str(os.getpid())


def test_defaults_are_those_of_the_documentation() -> None:
    client, producer = ClientConfig(), ProducerConfig()
    assert (client.route_poll_interval, client.heartbeat_interval, client.idle_timeout) == (30.0, 30.0, 120.0)
    assert (producer.timeout, producer.retries, producer.async_retries) == (3.0, 2, 2)
    assert (producer.compress_over, producer.max_message_size) == (4096, 4 * 1024 * 1024)
    assert (producer.async_limit, producer.oneway_limit, producer.broker_window) == (65535, 65535, 8192)
    assert (producer.pending_bytes_limit, producer.oneway_window) == (100 * 1024 * 1024, 1024)
