"""The configuration of a real cluster's servers: profiles, JVM options, and the files that the servers read.

All keys were tested with 5.5.0. A profile is data: a new profile (users, certificates, transaction timers) needs keys and JVM
properties in this module but no other code. ``|`` combines profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..credentials import Credentials

NAME_SERVER_CLASS: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER_CLASS: Final = "org.apache.rocketmq.broker.BrokerStartup"
CLUSTER_NAME: Final = "DefaultCluster"


_CERTIFICATES: Final = "{certificates}"


@dataclass(frozen=True)
class Profile:
    """Keys for the configuration files of brokers and name servers, and JVM options, in addition to the keys and options of
    every server.

    In ``a | b``, the keys of ``b`` replace equal keys of ``a``, and the JVM options of ``b`` follow the options of ``a``.

    Attributes:
        credentials: Credentials of a user with all permissions. With None, requests are not signed.
        tls: Whether the cluster uses TLS. If so, certificates are created for the cluster, and its own requests use TLS. The
            directory of the certificates replaces ``{certificates}`` in JVM options. These options must make the servers accept
            only TLS.
        client_certificate: Whether the cluster's own requests present a client certificate.
    """

    broker: Mapping[str, str] = field(default_factory=dict)
    name_server: Mapping[str, str] = field(default_factory=dict)
    broker_jvm: tuple[str, ...] = ()
    name_server_jvm: tuple[str, ...] = ()
    credentials: Credentials | None = None
    tls: bool = False
    client_certificate: bool = False

    def __or__(self, other: Profile) -> Profile:
        return Profile(
            broker={**self.broker, **other.broker},
            name_server={**self.name_server, **other.name_server},
            broker_jvm=(*self.broker_jvm, *other.broker_jvm),
            name_server_jvm=(*self.name_server_jvm, *other.name_server_jvm),
            credentials=other.credentials or self.credentials,
            tls=self.tls or other.tls,
            client_certificate=self.client_certificate or other.client_certificate,
        )


def jvm_options(profile: Profile, main_class: str, certificates: Path | None) -> tuple[str, ...]:
    """Return the JVM options of one kind of server. The first option turns TLS off. The profile's options follow and may
    override it.
    """
    options = profile.broker_jvm if main_class == BROKER_CLASS else profile.name_server_jvm
    return (_NO_TLS, *(option.replace(_CERTIFICATES, str(certificates)) for option in options))


# With the default, "permissive", a name server creates a self-signed RSA certificate in Java at each start, and a broker
# creates two. The starts then take 2.4 s and 5.5 s of CPU instead of 1.0 s and 2.5 s (medians of 5, interleaved), and both
# servers are up after 5.5 s instead of 2.2 s.
_NO_TLS: Final = "-Dtls.server.mode=disabled"
# Long limits, because a test must not get the errors of a busy broker on a loaded machine, on which several brokers may run.
_CORRECTNESS: Final = Profile(
    broker={
        "waitTimeMillsInSendQueue": "5000",
        "sendThreadPoolQueueCapacity": "100000",
        "osPageCacheBusyTimeOutMills": "10000",
    }
)
_ADMIN: Final = Credentials("admin", "adminpass")
_AUTH: Final = "org.apache.rocketmq.auth"
_AUTHENTICATION: Final = Profile(
    credentials=_ADMIN,
    broker={
        "authenticationEnabled": "true",
        "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": f'{{"username":"{_ADMIN.access_key}","password":"{_ADMIN.secret_key}"}}',
        "innerClientAuthenticationCredentials": (f'{{"accessKey":"{_ADMIN.access_key}","secretKey":"{_ADMIN.secret_key}"}}'),
    },
)
_AUTHORIZATION: Final = Profile(
    broker={
        "authorizationEnabled": "true",
        "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    }
)
_TRANSACTIONS: Final = Profile(
    broker={
        "transactionTimeOut": "2000",
        "transactionCheckInterval": "1000",
        "transactionCheckMax": "3",
        # With other values, including the defaults, 5.5.0's TransactionalOpBatchService spins one core, beginning one batch
        # interval after the first transaction has ended. With these values, it writes each op message at once.
        "transactionOpMsgMaxSize": "1",
        "transactionOpBatchInterval": "3600000",
    }
)
_SERVE_TLS: Final = (
    "-Dtls.server.mode=enforcing",
    "-Dtls.test.mode.enable=false",
    f"-Dtls.server.certPath={_CERTIFICATES}/server.pem",
    f"-Dtls.server.keyPath={_CERTIFICATES}/server.key",
)
_VERIFY_SERVERS: Final = (
    "-Dtls.enable=true",
    "-Dtls.client.authServer=true",
    f"-Dtls.client.trustCertPath={_CERTIFICATES}/ca.pem",
)
_TLS: Final = Profile(tls=True, name_server_jvm=_SERVE_TLS, broker_jvm=(*_SERVE_TLS, *_VERIFY_SERVERS))
_DEMAND_CERTIFICATE: Final = (
    "-Dtls.server.need.client.auth=require",
    "-Dtls.server.authClient=true",
    f"-Dtls.server.trustCertPath={_CERTIFICATES}/ca.pem",
)
_SHOW_CERTIFICATE: Final = (
    f"-Dtls.client.certPath={_CERTIFICATES}/client.pem",
    f"-Dtls.client.keyPath={_CERTIFICATES}/client.key",
)
_MUTUAL: Final = Profile(
    client_certificate=True, name_server_jvm=_DEMAND_CERTIFICATE, broker_jvm=(*_DEMAND_CERTIFICATE, *_SHOW_CERTIFICATE)
)

PROFILES: Final[Mapping[str, Profile]] = {
    "correctness": _CORRECTNESS,
    # The servers' defaults, for tests of busy brokers and for benchmarks: SYSTEM_BUSY after 200 ms in the send queue.
    "stock": Profile(),
    "auth": _CORRECTNESS | _AUTHENTICATION,
    "authorization": _CORRECTNESS | _AUTHENTICATION | _AUTHORIZATION,
    # A half message is checked for the first time 2.6-2.9 s after its arrival, and then every second, three times.
    "transactions": _CORRECTNESS | _TRANSACTIONS,
    "recall": _CORRECTNESS | Profile(broker={"recallMessageEnable": "true"}),
    "trace": _CORRECTNESS | Profile(broker={"traceTopicEnable": "true"}),
    # For 5 s after SIGTERM (``Server.stop``), requests of clients from 5.3.2 on get GO_AWAY (1500). Older clients are served.
    "go-away": _CORRECTNESS | Profile(broker={"enableShutdownGracefully": "true", "shutdownWaitTimeSeconds": "5"}),
    "tls": _CORRECTNESS | _TLS,
    "mutual-tls": _CORRECTNESS | _TLS | _MUTUAL,
}

_OPEN_MODULES: Final = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
)
# Small servers live for minutes only. With the first compiler alone, they start in 3.7 s instead of 4.9 s (5.9 s of CPU instead
# of 8.7 s, medians of 4) and serve 23,000 sends per second in the first seconds. With both compilers, they serve 17,000,
# because the second compiler competes for the CPU.
_SMALL: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_MEMORY: Final = {
    # (main class, small) -> options. Heaps of 24m for name servers and 96m for brokers still worked, but a heap of 16m for a
    # name server did not. 256m of direct memory were exhausted while members popped.
    (NAME_SERVER_CLASS, True): ("-Xmx32m", *_SMALL),
    (NAME_SERVER_CLASS, False): ("-Xms64m", "-Xmx192m"),
    (BROKER_CLASS, True): ("-Xmx192m", "-XX:MaxDirectMemorySize=1g", *_SMALL),
    (BROKER_CLASS, False): ("-Xms384m", "-Xmx768m", "-XX:MaxDirectMemorySize=1g"),
}
_LOGBACK_NAME: Final = "logback.xml"
# One file replaces 5.5.0's eighty appenders, each of which has a thread. A name server and a broker then start in 2.6 s of CPU
# instead of 3.0 s.
_LOGBACK: Final = """\
<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/server.log</file>
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="file"/></root>
</configuration>
"""


def name_server_keys(port: int) -> dict[str, str]:
    return {"listenPort": str(port), "bindAddress": "127.0.0.1"}


def broker_keys(name: str, port: int, namesrv: str, directory: Path) -> dict[str, str]:
    return {
        "brokerClusterName": CLUSTER_NAME,
        "brokerName": name,
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": str(port),
        "namesrvAddr": namesrv,
        "storePathRootDir": str(directory / "store"),
        "mappedFileSizeCommitLog": str(128 * 1024 * 1024),
        "mappedFileSizeConsumeQueue": "600000",
        "autoCreateTopicEnable": "true",
        # 5.5.0's TransactionMetricsFlushService spins one core from its start until this interval (10 s by default) has passed.
        # It writes its file at every interval, in 1 ms of CPU. With 200 ms, a broker that lives for a minute uses the least
        # CPU.
        "transactionMetricFlushInterval": "200",
        # The default is 1 s. Each flush compares and writes all slots of the timer wheel, in 0.25 s of CPU. An idle small
        # broker then uses 13 % of a core, 3 % with 5 s and 1 % with 30 s. With ten minutes, it uses almost nothing for flushes.
        # After a crash, the timer log is read again from the last flush.
        "timerFlushIntervalMs": "600000",
        # On a full disk, the broker refuses writes instead of deleting messages that a test may still read.
        "cleanFileForciblyEnable": "false",
        "diskMaxUsedSpaceRatio": "95",
    }


def write_configuration(directory: Path, keys: Mapping[str, str], *, version: str) -> Path:
    """Create a server's directory with its files. Return the path of the configuration file."""
    (directory / "tmp").mkdir(parents=True, exist_ok=True)
    (directory / "conf").mkdir(exist_ok=True)
    for name in ("logback_namesrv.xml", "logback_broker.xml") if version.startswith("4.") else (_LOGBACK_NAME,):
        (directory / "conf" / name).write_text(_LOGBACK)  # 4.x exits with 255 if its own files are missing
    file = directory / "server.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return file


def java_command(
    java: str, main_class: str, class_path: str, directory: Path, *, small: bool, options: tuple[str, ...] = ()
) -> list[str]:
    """Return the command that starts a server. The server writes files only under ``directory``.

    With UsePerfData, the server would leave a file in /tmp after SIGKILL.
    """
    own = (
        f"-Duser.home={directory}",
        f"-Djava.io.tmpdir={directory / 'tmp'}",
        f"-Drmq.logback.configurationFile={directory / 'conf' / _LOGBACK_NAME}",
        "-XX:-UsePerfData",
    )
    memory = _MEMORY[main_class, small]
    arguments = ("-cp", class_path, main_class, "-c", str(directory / "server.conf"))
    return [java, *_OPEN_MODULES, *memory, *own, *options, *arguments]
