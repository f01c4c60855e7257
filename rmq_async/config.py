"""The settings of a client instance, and functions that check settings. ``ClientConfig`` is immutable, and validated on
creation.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

from rmq_protocol import validation
from rmq_protocol.constants import MAX_DECOMPRESSED_SIZE, MAX_FRAME_SIZE, SerializeType
from rmq_protocol.errors import InvalidMessageError, LocalProtocolError, shown
from rmq_protocol.subscription import parse_tags
from rmq_protocol.validation import plain

from . import machine
from ._text import type_name
from .credentials import Credentials
from .errors import ConfigError, InvalidGroupError
from .options import suggests_keywords, unexpected_keyword
from .timeouts import LONG_INTERVAL, warn_of_milliseconds

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")

NAMESRV_ENVIRONMENT: Final = "NAMESRV_ADDR"
LARGEST_FRAME_SIZE: Final = 8 * MAX_FRAME_SIZE
"""The maximum of the setting ``max_frame_size``."""
LONGEST: Final = 1e9
"""Seconds (31 years). Every time in a setting must be below this."""

LONGEST_NAMESPACE: Final = 100
"""Maximum number of characters of a namespace. It leaves enough of a topic's 127 characters for a name."""
_NAMESPACE: Final = re.compile(r"[a-zA-Z0-9_-]+")
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "CID_RMQ_SYS_")

_inherited_names: Final[set[str]] = set()
"""The instance names of the processes from which this process was forked."""


def _process_instance_name() -> str:
    """Return the default instance name, ``<pid>#<8 hex digits>``. It is drawn at random once per process, so the clients of one
    process share it, and clients of different processes have different names.
    """
    if not machine.instance_name:
        machine.instance_name = f"{machine.process_id()}#{machine.entropy.getrandbits(32):08x}"
    return machine.instance_name


def _forget_instance_name() -> None:
    _inherited_names.add(machine.instance_name)
    machine.instance_name = ""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_instance_name)


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Settings with which a client instance connects to a cluster.

    Producers, consumers and admins on one event loop with equal settings share one instance. Times are in seconds, above 0 and
    below 1e9; sizes are in bytes.

    Raises:
        ConfigError: If a value is invalid, two settings exclude each other, or a setting requires another one that is not set.
        TypeError: If an option is unknown.
    """

    namesrv: str | Sequence[str] | None = None
    """Addresses of the name servers: "host:port;host:port" or a sequence of "host:port". The default is the environment variable
    NAMESRV_ADDR."""
    instance_name: str = field(default_factory=_process_instance_name)
    """Part of the client id. Clients with different names share nothing. The default is drawn at random once per process."""
    client_ip: str | None = None
    """Address under which brokers list this client. The default is the local address of the connection to the name server."""
    route_poll_interval: float = 30.0
    """Seconds between two requests for the route of each topic in use."""
    heartbeat_interval: float = 30.0
    """Seconds between two heartbeats, which register this client's groups at each broker in use."""
    connect_timeout: float = 3.0
    """Maximum seconds for one connection attempt, including the lookup of the host name, the attempts at all its addresses, and the
    TLS handshake."""
    request_timeout: float = 3.0
    """Maximum seconds for a request that is not a send, unless the call has its own timeout. For a pull that waits at the broker,
    the time of that wait is added."""
    idle_timeout: float = 120.0
    """Seconds after which an unused connection is closed."""
    max_frame_size: int = MAX_FRAME_SIZE
    """Maximum size of a response in bytes, 1024 to 134,217,728. A request with a larger response fails; a response above 256 MiB
    also closes the connection."""
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE
    """Maximum size of a received body in bytes after decompression, 1024 to 2^31."""
    serialize_type: str = "json"
    """Format of request headers: "json" or "rocketmq" (binary). Responses are accepted in both formats."""
    credentials: Credentials | None = None
    """Keys with which every request is signed."""
    tls: bool | ssl.SSLContext = False
    """An SSLContext, or True for the default context, which verifies certificates unless ``tls_verify`` is False. It is used for
    name servers and brokers."""
    tls_verify: bool = True
    """Whether to verify certificates. False accepts any certificate; it requires ``tls=True``."""
    server_hostname: str | None = None
    """The name that the servers' certificates must contain, if it differs from the host name."""
    allowed_broker_hosts: Collection[str] | None = None
    """Host names, addresses and networks ("10.0.0.0/8") to which the client may connect because a route names them. Names are
    compared as strings, not resolved. By default, all hosts are allowed."""
    vip_channel: bool = False
    """Whether to send messages to the brokers' second port (the VIP port), which is two below the first."""
    namespace: str | None = None
    """Prefix of topics and groups: 1 to 100 letters, digits, "-" and "_". It must not begin with "rmq_sys_" or "CID_RMQ_SYS_"."""
    namespace_v2: str | None = None
    """Namespace that is sent in a field of each request, for servers that support it. The names of topics and groups stay
    unchanged. The same characters as in ``namespace`` are allowed."""
    unit_name: str | None = None
    """Name of this client's unit of the cluster. It is appended to the client id."""
    unit_mode: bool = False
    """Whether each send has the flag which says that the client belongs to one unit."""
    start_without_cluster: bool = False
    """Whether ``start()`` returns even if no name server responds. Calls then wait, within their timeouts, until a name server
    responds and names a broker. ``start()`` of a group consumer waits for ``request_timeout``."""

    def __post_init__(self) -> None:
        plain_fields(self)
        for name in ("route_poll_interval", "heartbeat_interval", "connect_timeout", "request_timeout", "idle_timeout"):
            check_seconds(name, getattr(self, name))
        for name in ("connect_timeout", "request_timeout"):
            warn_of_milliseconds(name, getattr(self, name))
        for name in ("route_poll_interval", "heartbeat_interval"):
            warn_of_milliseconds(name, getattr(self, name), least=LONG_INTERVAL)
        check_int("max_frame_size", self.max_frame_size, 1024, LARGEST_FRAME_SIZE)
        check_int("max_decompressed_size", self.max_decompressed_size, 1024, 1 << 31)
        if self.serialize_type not in ("json", "rocketmq"):
            raise ConfigError(f'serialize_type must be "json" or "rocketmq", not {shown(self.serialize_type)}')
        check_text("instance_name", self.instance_name)
        if self.client_ip is not None:
            check_text("client_ip", self.client_ip)
        name_servers(self.namesrv)
        self._check_security()
        self._check_names()

    def _check_security(self) -> None:
        if not isinstance(self.credentials, Credentials | None):
            raise ConfigError(f"credentials must be Credentials, not {type_name(self.credentials)}")
        if not isinstance(self.tls, bool | ssl.SSLContext):
            raise ConfigError(f"tls must be True, False or an ssl.SSLContext, not {shown(self.tls)}")
        check_flag("tls_verify", self.tls_verify)
        if isinstance(self.tls, ssl.SSLContext) and self.tls.protocol == ssl.PROTOCOL_TLS_SERVER:
            raise ConfigError("tls must be an SSLContext for clients, not for servers; use ssl.create_default_context()")
        if not self.tls_verify and self.tls is not True:
            raise ConfigError(
                f"tls_verify=False requires tls=True, not {shown(self.tls)}; configure the verification in your SSLContext instead"
            )
        if self.server_hostname is not None:
            check_text("server_hostname", self.server_hostname)
            if self.tls is False:
                raise ConfigError(f"server_hostname={shown(self.server_hostname)} requires tls=True or an SSLContext")
        hosts = self.allowed_broker_hosts
        if hosts is None:
            return
        if isinstance(hosts, str) or not isinstance(hosts, Collection) or not hosts:
            raise ConfigError(f"allowed_broker_hosts must be a non-empty collection of strings, not {shown(hosts)}")
        object.__setattr__(self, "allowed_broker_hosts", frozenset(map(_host_or_network, hosts)))

    def _check_names(self) -> None:
        for name in ("vip_channel", "unit_mode", "start_without_cluster"):
            check_flag(name, getattr(self, name))
        if self.unit_name is not None:
            check_text("unit_name", self.unit_name)
        for name in ("namespace", "namespace_v2"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str) or _NAMESPACE.fullmatch(value) is None or len(value) > LONGEST_NAMESPACE:
                limits = f"1 to {LONGEST_NAMESPACE} characters from a-z, A-Z, 0-9, - and _"
                raise ConfigError(f"{name} must be {limits}, not {shown(value)}")
            if value.startswith(_SYSTEM_PREFIXES):
                reserved = " and ".join(_SYSTEM_PREFIXES)
                raise ConfigError(
                    f"{name} {shown(value)} begins with a reserved prefix; {reserved} are reserved for the system"
                )
        if self.namespace is not None and self.namespace_v2 is not None:
            both = f"namespace {shown(self.namespace)} and namespace_v2 {shown(self.namespace_v2)}"
            raise ConfigError(f"{both} exclude each other; give only one of them")

    def resolved(self) -> ClientConfig:
        """Return a copy of the settings with the name servers as a sorted tuple. If none are given, they are taken from
        NAMESRV_ADDR.

        A default ``instance_name`` that was drawn before a fork is replaced by the name of this process, because servers
        distinguish clients by it.

        Raises:
            ConfigError: For an invalid address in the environment.
        """
        given = self.namesrv if self.namesrv else os.environ.get(NAMESRV_ENVIRONMENT)
        name = _process_instance_name() if self.instance_name in _inherited_names else self.instance_name
        return replace(self, namesrv=tuple(sorted(set(name_servers(given)))), instance_name=name)

    @property
    def header_type(self) -> SerializeType:
        return SerializeType.JSON if self.serialize_type == "json" else SerializeType.ROCKETMQ


class ClientOptions(TypedDict, total=False):
    """The fields of ClientConfig as keyword arguments of clients, except ``namesrv``, which is a separate parameter."""

    instance_name: str
    client_ip: str | None
    route_poll_interval: float
    heartbeat_interval: float
    connect_timeout: float
    request_timeout: float
    idle_timeout: float
    max_frame_size: int
    max_decompressed_size: int
    serialize_type: str
    credentials: Credentials | None
    tls: bool | ssl.SSLContext
    tls_verify: bool
    server_hostname: str | None
    allowed_broker_hosts: Collection[str] | None
    vip_channel: bool
    namespace: str | None
    namespace_v2: str | None
    unit_name: str | None
    unit_mode: bool
    start_without_cluster: bool


_CLIENT_FIELDS = frozenset(item.name for item in fields(ClientConfig))


def client_options(
    owner: str,
    namesrv: str | Sequence[str] | None,
    client: ClientConfig | None,
    options: Mapping[str, object],
    others: Collection[str] = (),
) -> ClientConfig:
    """Return ``client`` (or the default settings if it is None) with ``namesrv`` and those ``options`` that are fields of
    ClientConfig.

    Args:
        owner: The name of the class, for error messages.
        others: Names of options that are fields of another config.

    Raises:
        TypeError: For an option that is a field of neither config, and for a ``client`` of another type.
        ConfigError: For an invalid value.
    """
    if not isinstance(client, ClientConfig | None):
        raise TypeError(f"client must be a ClientConfig, not {type_name(client)}")
    for name in options:
        if name not in _CLIENT_FIELDS and name not in others:
            raise unexpected_keyword(owner, name, [*_CLIENT_FIELDS, *others, "client", *(["config"] if others else [])])
    given: dict[str, Any] = {name: value for name, value in options.items() if name in _CLIENT_FIELDS}
    if namesrv is not None:
        given["namesrv"] = namesrv
    base = client if client is not None else ClientConfig()
    return replace(base, **given) if given else base


def split_options(
    owner: str,
    kind: type[C],
    namesrv: str | Sequence[str] | None,
    client: ClientConfig | None,
    config: C | None,
    options: Mapping[str, object],
) -> tuple[ClientConfig, C]:
    """Return the two configs, with each keyword option set in the config to which it belongs.

    Args:
        owner: The name of the class, for error messages.
        kind: The class of ``config``, a dataclass whose fields all have defaults.

    Raises:
        TypeError: For an unknown option, and for a ``client`` or ``config`` of another type.
        ConfigError: For an invalid value.
    """
    names = {item.name for item in fields(kind)}
    merged = client_options(owner, namesrv, client, options, names)
    if config is not None and not isinstance(config, kind):
        raise TypeError(f"config must be a {kind.__name__}, not {type_name(config)}")
    given: dict[str, Any] = {name: value for name, value in options.items() if name in names}
    base = kind() if config is None else config
    return merged, replace(base, **given) if given else base


def name_servers(given: str | Sequence[str] | None) -> list[str]:
    """Return the addresses in "a:1;b:2" (or with commas) or in a sequence of such strings. Return an empty list for None.

    Raises:
        ConfigError: For a value of another type, and for an address that is not host:port.
    """
    if given is None:
        return []
    if not isinstance(given, Sequence):
        raise ConfigError(f"namesrv must be a str or a sequence of strings, not {shown(given)}")
    texts = [given] if isinstance(given, str) else list(given)
    found = []
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"a name server address must be a str, not {shown(text)}")
        for part in text.replace(",", ";").split(";"):
            address = part.strip()
            if address:
                _check_address(address)
                found.append(address)
    return found


def host_and_port(address: str) -> tuple[str, int] | None:
    """Return the host and port of "host:port", "[v6]:port" or "v6:port". The last colon separates the port.

    Return None for other strings, and for a port outside 1 to 65535.
    """
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 65536:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not host.isprintable() or any(character in "[]/ " for character in host):
        return None
    return host, int(port)


def canonical_host(host: str) -> str:
    """Return a host in canonical form: a name in lower case without a final dot, an address in its shortest form, and an
    IPv4-mapped IPv6 address as IPv4.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host.lower().removesuffix(".")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def _host_or_network(text: str) -> str:
    check_text("allowed_broker_hosts: each", text)
    try:
        if "/" in text:
            return str(ip_network(text))
        host = canonical_host(text.removeprefix("[").removesuffix("]"))
        if ":" in host:
            return str(ip_address(host))
    except ValueError as error:
        raise ConfigError(
            f"allowed_broker_hosts: {shown(text)} is neither a host nor a network ({error}); give names, addresses or CIDR"
        ) from None
    return host


def _check_address(address: str) -> None:
    if host_and_port(address) is None:
        raise ConfigError(f"a name server's address must be host:port, not {shown(address)}")


def check_group(group: str) -> None:
    """Raise InvalidGroupError unless the group consists of 1 to 120 letters, digits and characters out of ``% | _ -``."""
    try:
        validation.check_group(group)
    except InvalidMessageError as error:
        raise InvalidGroupError(str(error)) from None


def check_seconds(name: str, value: float, *, zero: bool = False) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(f"{name} must be a number of seconds, not {shown(value)}")
    if not value < LONGEST:  # written so that NaN fails, too
        raise ConfigError(f"{name} must be a number of seconds below {LONGEST:.0f}, not {shown(value)}")
    if value < 0 or (value == 0 and not zero):
        raise ConfigError(f"{name} must be {'at least' if zero else 'above'} 0 seconds, not {shown(value)}")


def check_int(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high}, not {shown(value)}")


def plain_fields(config: Any) -> None:
    """Convert those field values of a dataclass that are instances of subclasses of str, int or float to the plain types. For
    example, a member of an Enum has another hash than its str value, and formatting it may give its name.
    """
    for name in [each.name for each in fields(config)]:
        value = getattr(config, name)
        if value.__class__ in _PLAIN:
            continue
        if isinstance(value, str):
            object.__setattr__(config, name, plain(value))
        elif isinstance(value, int):
            object.__setattr__(config, name, int(value))
        elif isinstance(value, float):
            object.__setattr__(config, name, float(value))


_PLAIN: Final = (str, int, bool, float)


def check_flag(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {shown(value)}")


def check_topic_option(name: str, topic: str) -> None:
    try:
        validation.check_topic(topic)
    except InvalidMessageError as error:
        raise ConfigError(f"{name}: {error}") from None


def check_trace(trace: bool | str) -> None:
    """Raise ConfigError unless ``trace`` is True, False or the name of a topic."""
    if isinstance(trace, str):
        check_topic_option("trace", trace)
    else:
        check_flag("trace", trace)


def check_text(name: str, value: str, *, longest: int | None = None) -> str:
    """Return a string as an instance of str, not of a subclass.

    Raises:
        ConfigError: For a value that is not a str, is blank, has more than ``longest`` characters, or cannot be encoded in UTF-8.
    """
    if not isinstance(value, str) or not value.strip() or (longest is not None and len(value) > longest):
        limit = "" if longest is None else f" of 1 to {longest} characters"
        raise ConfigError(f"{name} must be a str that is not blank{limit}, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} must be a str that UTF-8 can encode, not {shown(value)}") from None
    return plain(value)


def checked_tags(tags: str) -> str:
    """Return the tags of a subscription or of a read as an instance of str, not of a subclass. Raise ConfigError for an invalid
    value.
    """
    try:
        if isinstance(tags, str) and (tags == "*" or parse_tags(tags)):  # blanks alone would select nothing at brokers
            return plain_text("tags", tags)
    except LocalProtocolError:
        pass
    raise ConfigError(f'tags must be "*" or tags joined by "||", not {shown(tags)}')


def plain_text(name: str, text: str) -> str:
    """Return a string as an instance of str, not of a subclass. Raise ConfigError for a string that cannot be encoded in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}={shown(text)} has a lone surrogate, which UTF-8 cannot encode; remove it") from None
    return str.__str__(text)
