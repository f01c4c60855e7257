"""Messages to send and messages received.

A ``Message`` is built for each send, on the hot path. It is therefore a plain Struct in C, and ``__post_init__`` only tests whether
the body is bytes and whether anything beyond topic and body was given. Building takes 130 ns with an empty ``__post_init__`` and
190 ns with the tests (17 ns of it for the test of the body). Tags, keys and properties of the usual types are joined and checked
together. If this check fails, each field is checked alone, so that the error can name the field.

A ``MessageExt`` is built for each record of a pull. It keeps the values of the record and derives ``tags``, ``keys``, ``msg_id``
and ``offset_msg_id`` at each access, because most readers use only one or two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypedDict, Unpack

from msgspec import Struct
from msgspec.structs import force_setattr

from .constants import RESERVED_NAMES, RETRY_TOPIC_PREFIX, PropertyName
from .errors import InvalidMessageError, shown
from .forwarding import DEAD_LITE_TOPIC, holdable, holdable_properties, original_topic, user_properties
from .ids import pack_offset_id
from .lite import check_lite_topic

__all__ = ["MAX_DELAY_LEVEL", "Message", "MessageExt", "MessageQueue"]

_INT32_MIN: Final = -(2**31)
_INT32_MAX: Final = 2**31 - 1
MAX_DELAY_LEVEL: Final = _INT32_MAX
"""The highest ``delay_level`` that a Message accepts. A stock broker has 18 levels and treats a higher level as its highest.
The broker's setting ``messageDelayLevel`` may list more levels."""

NO_KEYS: Final[tuple[str, ...]] = ()
"""The ``keys`` of a message that has only topic, body and ``wait_store``. Sends recognise such messages by the identity of this
object."""
_NO_NUMBER: Final = 0
_COUNTERS: Final = (PropertyName.RECONSUME_TIME.value, PropertyName.MAX_RECONSUME_TIMES.value)
_MAX_SECONDS: Final = (2**63 - 1) // 1000
_EPOCH_MILLISECONDS: Final = 10**12
"""September 2001 in milliseconds, or the year 33658 in seconds. A larger ``deliver_at`` was evidently given in milliseconds."""
BLANKS: Final = "".join(map(chr, range(33)))
"""The characters that Java's ``String.trim`` removes: U+0000 to U+0020, but no other white space."""


_DELAYS: Final = ("delay_level", "delay", "deliver_at")
_PLACES: Final = ("sharding_key", "lite_topic", "priority")


class Keys(tuple[str, ...]):
    """The empty keys of a message that has other properties, such as tags, and therefore must not have NO_KEYS.

    A message with keys has a plain tuple. The subclasses GeneralKeys and ShardedKeys, which may be empty or not, mark messages
    whose send needs more work.
    """

    __slots__ = ()


NO_OWN_KEYS: Final = Keys()


class GeneralKeys(Keys):
    """The keys of a message with a delay or with retry counters. A producer sends such a message on its general path."""

    __slots__ = ()


class ShardedKeys(GeneralKeys):
    """The keys of a message with a sharding key that has neither a delay nor retry counters."""

    __slots__ = ()


class LiteKeys(GeneralKeys):
    """The keys of a message to a lite topic."""

    __slots__ = ()


class PriorityKeys(GeneralKeys):
    """The keys of a message with a priority."""

    __slots__ = ()


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int


class MessageChanges(TypedDict, total=False):
    """The fields of a Message, except its topic, as keyword arguments."""

    body: bytes
    tags: str | None
    keys: str | Iterable[str]
    flag: int
    properties: Mapping[str, str] | None
    delay_level: int
    delay: float | None
    deliver_at: float | datetime | None
    wait_store: bool
    sharding_key: str | None
    unique_id: str | None
    lite_topic: str | None
    priority: int | None


class _Addressed(Struct, frozen=True, gc=False):
    topic: str
    body: bytes


class Message(_Addressed, frozen=True, gc=False, kw_only=True):
    """A message to send. Sending never changes it.

    Each send makes further checks of the topic and the body.

    Attributes:
        properties: A mapping from str to str.
        sharding_key: A string by which the queue is chosen.
        tags: One tag.
        keys: A string, which is split at spaces, or several strings. They are kept as a tuple and joined by spaces on the wire.
        flag: Signed 32-bit number that brokers pass through.
        delay_level: Level of the delay, 1 or more. 0 for no delay. A stock broker has 18 levels.
        delay: Delay in seconds.
        deliver_at: Time of delivery, as epoch seconds or an aware datetime.
        wait_store: False lets the broker respond before the message is flushed or replicated.
        unique_id: Id of the message. None makes a new id for each send call.
        lite_topic: Name of a lite topic of the topic, whose type must be LITE (``check_lite_topic``).
        priority: Number from 0 to 2**31 - 1, for a topic of the type PRIORITY. Pops return higher numbers first.

    Raises:
        InvalidMessageError: If the body is a str, a property name is reserved (RECONSUME_TIME and MAX_RECONSUME_TIMES are allowed
            in retry topics), ``unique_id`` or a name or value of a property is blank, a string has no UTF-8 form or has one of the
            control characters 0 to 2 in it, more than one kind of delay is given, more than one of a delay, ``sharding_key``,
            ``lite_topic`` and ``priority`` is given with ``lite_topic`` or ``priority`` among them, or the value of another field
            except ``wait_store`` has a wrong type or is out of range.
    """

    tags: str | None = None
    keys: tuple[str, ...] = NO_KEYS
    flag: int = 0
    properties: Mapping[str, str] | None = None
    delay_level: int = 0
    delay: float | None = None
    deliver_at: float | datetime | None = None
    wait_store: bool = True
    sharding_key: str | None = None
    unique_id: str | None = None
    lite_topic: str | None = None
    priority: int | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            topic: str,
            body: bytes,
            *,
            tags: str | None = None,
            keys: str | Iterable[str] = (),
            flag: int = 0,
            properties: Mapping[str, str] | None = None,
            delay_level: int = 0,
            delay: float | None = None,
            deliver_at: float | datetime | None = None,
            wait_store: bool = True,
            sharding_key: str | None = None,
            unique_id: str | None = None,
            lite_topic: str | None = None,
            priority: int | None = None,
        ) -> None: ...

    @classmethod
    def from_received(cls, message: MessageExt, *, topic: str | None = None, **changes: Unpack[MessageChanges]) -> Self:
        """Return a message to send, with the fields that the sender of ``message`` set: body, tags, keys, flag, sharding key, lite
        topic, priority and properties.

        Values that a Message does not allow are not copied: system properties, blank strings, strings that cannot be encoded as
        UTF-8, and strings with one of the control characters 0 to 2. Delays are not copied either, and each send makes a new id.
        Sharding key, lite topic and priority are not copied if they exclude each other or one of ``changes``.

        Args:
            topic: Topic of the new message. None for the topic to which ``message`` was first sent, even if it was read as a
                retry, as a dead letter or before the end of its delay.
            **changes: Fields to replace. ``properties`` replaces all properties.

        Raises:
            InvalidMessageError: If the constructor refuses ``changes``.
            TypeError: If ``changes`` has the name of a field that does not exist.
        """
        fields: MessageChanges = {
            "body": message.body,
            "tags": holdable(message.tags),
            "flag": message.flag,
            "properties": holdable_properties(message.properties) or None,
        }
        if keys := [key for key in message.keys if holdable(key)]:
            fields["keys"] = keys
        topic = original_topic(message.topic, message.properties) if topic is None else topic
        place = _place_of(topic, message)
        delayed = any(changes.get(name) for name in _DELAYS) and "sharding_key" not in place
        if not delayed and all(changes.get(name) is None for name in _PLACES):
            fields |= place
        fields |= changes
        return cls(topic, **fields)

    def __post_init__(self) -> None:
        if (
            self.body.__class__ is not bytes
            or self.topic.__class__ is not str
            or self.flag is not _NO_NUMBER
            or self.delay_level is not _NO_NUMBER
            or self.delay is not None
            or self.deliver_at is not None
            or self.unique_id is not None
            or self.lite_topic is not None
            or self.priority is not None
        ):
            _check_fields(self)
        elif self.tags is not None or self.keys is not NO_KEYS or self.properties is not None or self.sharding_key is not None:
            _check_texts(self)


class MessageExt(Struct, frozen=True, gc=False):
    """A message as a broker stored it.

    Attributes:
        properties: All properties, system properties included.
        queue: The queue from which the message was read.
        body: The decompressed body.
        sys_flag: The stored flag, with bit 0 cleared if the body was decompressed.
        body_crc: The CRC32 in the record, which is that of the stored or of the decompressed body. 0 for a message of an inner
            batch.
        store_size: Size of the whole record in bytes. 0 for a message of an inner batch.
        born_time_ms: Time at which the message was sent, epoch ms.
        store_time_ms: Time at which the message was stored, epoch ms.
        born_host: "ip:port" of the sender. An IPv6 address is in brackets.
        store_host: "ip:port" of the broker. An IPv6 address is in brackets.
        transaction_id: The unique id, which a pull sets here if the message belongs to a transaction.
    """

    topic: str
    body: bytes
    flag: int = 0
    properties: dict[str, str] = {}
    queue: MessageQueue = MessageQueue("", "", 0)
    queue_offset: int = 0
    commit_log_offset: int = 0
    sys_flag: int = 0
    body_crc: int = 0
    store_size: int = 0
    born_time_ms: int = 0
    store_time_ms: int = 0
    born_host: str = ""
    store_host: str = ""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    transaction_id: str | None = None

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        keys = self.properties.get("KEYS")
        return tuple([key for key in keys.split(" ") if key]) if keys else ()

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the sender set, without those of the system. Each access returns a new dict."""
        return user_properties(self.properties)

    @property
    def unique_id(self) -> str | None:
        """The id that the sending client assigned (property UNIQ_KEY). None if the message has none."""
        return self.properties.get("UNIQ_KEY")

    @property
    def msg_id(self) -> str:
        """The unique id. The offset id if the message has no unique id."""
        unique_id = self.properties.get("UNIQ_KEY")
        return self.offset_msg_id if unique_id is None else unique_id

    @property
    def offset_msg_id(self) -> str:
        """Store host and commit log offset in hexadecimal. Empty if the store host is not known.

        Messages of an inner batch have the id of their record. (In Java they have none.)
        """
        return pack_offset_id(self.store_host, self.commit_log_offset) if self.store_host else ""

    @property
    def wait_store(self) -> bool:
        value = self.properties.get("WAIT")
        return not value or value.lower() == "true"

    @property
    def delay_level(self) -> int:
        """The number in property DELAY. 0 if the property is missing or does not consist of 1 to 10 digits."""
        value = self.properties.get("DELAY", "")
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 11 else 0

    @property
    def sharding_key(self) -> str | None:
        return self.properties.get("__SHARDINGKEY")

    @property
    def lite_topic(self) -> str | None:
        """The lite topic, also of a dead letter. None if the message was not sent to a lite topic."""
        return self.properties.get("__LITE_TOPIC") or self.properties.get(DEAD_LITE_TOPIC)

    @property
    def priority(self) -> int | None:
        """The priority. None if the property is missing or is not a number from 0 to 2**31 - 1."""
        value = self.properties.get("_SYS_MSG_PRIORITY_", "")
        number = int(value) if value.isascii() and value.isdecimal() and len(value) < 11 else -1
        return number if 0 <= number <= _INT32_MAX else None


def _place_of(topic: str, message: MessageExt) -> MessageChanges:
    """Return the first of sharding key, lite topic and priority that a received message has, as the only one that a copy keeps."""
    if (key := holdable(message.sharding_key)) is not None:
        return {"sharding_key": key}
    if message.lite_topic is not None:
        try:
            return {"lite_topic": check_lite_topic(topic, message.lite_topic)}
        except InvalidMessageError:
            return {}
    return {} if message.priority is None else {"priority": message.priority}


def is_blank(text: str) -> bool:
    """Return whether Java's ``String.trim`` would return an empty string."""
    return not text.strip(BLANKS)


def _check_texts(message: Message) -> None:
    """Check tags, keys, sharding key and properties: together if they are printable and have the usual types, else one by one."""
    keys: Any = message.keys
    tags, properties, sharding_key = message.tags, message.properties, message.sharding_key
    if (
        (tags is not None and tags.__class__ is not str)
        or (keys is not NO_KEYS and keys.__class__ is not str)
        or (sharding_key is not None and sharding_key.__class__ is not str)
    ):
        _check_fields(message)
        return
    # Control characters and lone surrogates are not printable.
    text = f"{keys or ''}{tags or ''}{sharding_key or ''}"
    if not text.isprintable() or (properties is not None and not _is_usual(properties)):
        _check_fields(message)
        return
    texts: tuple[str, ...] = NO_OWN_KEYS
    if isinstance(keys, str) and keys:
        texts = (keys,) if " " not in keys else tuple(keys.split()) or texts  # the only printable white space is the blank
    force_setattr(message, "keys", texts if sharding_key is None else ShardedKeys(texts))
    if properties is not None:
        force_setattr(message, "properties", {**properties})


def _is_usual(properties: Mapping[str, str]) -> bool:
    """Return whether a fast check shows that ``properties`` is a dict of valid strings without reserved names."""
    if properties.__class__ is not dict:
        return False
    text = ""
    for name, value in properties.items():
        # "!" is the character after the blank. A string that is not below "!" begins with a character that is not blank.
        if name.__class__ is not str or value.__class__ is not str or name < "!" or value < "!":
            return False
        text = f"{text}{name}{value}"
    if not RESERVED_NAMES.isdisjoint(properties):
        return False
    # ``isprintable`` takes 2 to 4 ns a character, ``isascii`` and each search take one tenth of that.
    return (text.isascii() and "\x00" not in text and "\x01" not in text and "\x02" not in text) or text.isprintable()


def _check_fields(message: Message) -> None:
    """Check each field alone. Convert instances of subclasses of str and int to plain str and int, because formatting a member of
    an Enum may give its name.
    """
    if isinstance(message.topic, str):
        force_setattr(message, "topic", str.__str__(message.topic))
    body: Any = message.body
    if isinstance(body, str):
        raise InvalidMessageError("the body must be bytes, not str: encode the text, as in body.encode()")
    keys: Any = message.keys
    if keys is not NO_KEYS and not isinstance(keys, Keys):
        if isinstance(keys, str):
            keys = keys.split(" ")
        elif not isinstance(keys, Iterable):
            raise InvalidMessageError(f"keys must be a str or an iterable of str, not {type(keys).__name__}")
        keys = [_checked_text("key", key) for key in tuple(keys)]
        keys = [key for key in keys if key]
    if message.tags is not None:
        force_setattr(message, "tags", _checked_text("tags", message.tags))
    if message.sharding_key is not None:
        force_setattr(message, "sharding_key", _checked_text("sharding_key", message.sharding_key))
    if message.unique_id is not None:
        force_setattr(message, "unique_id", _checked_text("unique_id", message.unique_id))
        if is_blank(message.unique_id):
            raise InvalidMessageError("unique_id is blank; give a string, or None for a new id")
    flag: Any = message.flag
    if not isinstance(flag, int) or isinstance(flag, bool) or not _INT32_MIN <= flag <= _INT32_MAX:
        raise InvalidMessageError(f"flag must be a 32-bit integer, not {shown(flag)}")
    force_setattr(message, "flag", int(flag))
    level: Any = message.delay_level
    if not isinstance(level, int) or isinstance(level, bool) or not 0 <= level <= MAX_DELAY_LEVEL:
        raise InvalidMessageError(f"delay_level must be an integer from 0 to {MAX_DELAY_LEVEL}, not {shown(level)}")
    force_setattr(message, "delay_level", int(level))
    if message.properties is not None:
        force_setattr(message, "properties", _checked_properties(message))
    kind = _checked_kind(message)
    force_setattr(message, "keys", (tuple(keys) or NO_OWN_KEYS) if kind is Keys else kind(keys))


def _checked_kind(message: Message) -> type[Keys]:
    """Check delay, lite topic and priority. Return the class of the keys."""
    delayed = message.delay_level or message.delay is not None or message.deliver_at is not None
    if delayed:
        _check_delay(message)
    if message.lite_topic is not None or message.priority is not None:
        return _check_special(message, delayed=bool(delayed))
    if delayed or (message.properties and not RESERVED_NAMES.isdisjoint(message.properties)):
        return GeneralKeys
    return Keys if message.sharding_key is None else ShardedKeys


def _check_special(message: Message, *, delayed: bool) -> type[Keys]:
    """Check the lite topic or the priority. Return the class of the keys."""
    # Brokers of 5.5.0 confirm such a message in spite of a delay or a sharding key, and drop or misplace it.
    given = [name for name in ("lite_topic", "priority", "sharding_key") if getattr(message, name) is not None]
    if delayed:
        given.append(next(name for name in ("delay_level", "delay", "deliver_at") if getattr(message, name)))
    if len(given) > 1:
        raise InvalidMessageError(f"a message has {' and '.join(given)}, but may have only one of them; leave the others out")
    if message.lite_topic is not None:
        force_setattr(message, "lite_topic", check_lite_topic(message.topic, message.lite_topic))
        return LiteKeys
    priority: Any = message.priority
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= _INT32_MAX:
        raise InvalidMessageError(f"priority must be an integer from 0 to {_INT32_MAX}, not {shown(priority)}")
    force_setattr(message, "priority", int(priority))
    return PriorityKeys


def check_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of user properties after the checks of Java's ``Message.putUserProperty``.

    In addition, names and values must have a UTF-8 form and none of the control characters 0 to 2 in them.

    Raises:
        InvalidMessageError: If a property is invalid, or if ``properties`` is not a mapping (code 13).
    """
    given: Any = properties
    if _is_usual(given):
        return {**given}
    if not isinstance(given, Mapping):
        raise InvalidMessageError(f"properties must be a mapping, not {type(given).__name__}")
    checked: dict[str, str] = {}
    for name, value in dict(properties).items():
        checked[_checked_text("property name", name)] = _checked_text(f"value of property {shown(name)}", value)
        if name in RESERVED_NAMES:
            raise InvalidMessageError(f"property {shown(name)} is reserved for the system; choose another name")
        if is_blank(name) or is_blank(value):
            raise InvalidMessageError(f"property {shown(name)} = {shown(value)}: neither name nor value may be blank")
    return checked


def _checked_properties(message: Message) -> dict[str, str]:
    """Return the properties of ``message`` after ``check_properties``.

    Unlike other messages, a message of a retry topic may have the two counters that Java's ``sendMessageBack`` sets.
    """
    given: Any = message.properties
    if not isinstance(given, Mapping) or not isinstance(message.topic, str) or not message.topic.startswith(RETRY_TOPIC_PREFIX):
        return check_properties(given)
    counters = {name: given[name] for name in _COUNTERS if name in given}
    for name, text in counters.items():
        if not isinstance(text, str) or not text.isascii() or not text.isdecimal() or len(text) > 10 or int(text) > _INT32_MAX:
            raise InvalidMessageError(f"property {name} must be a whole number from 0 to {_INT32_MAX}, not {shown(text)}")
    return check_properties({name: text for name, text in given.items() if name not in counters}) | counters


def _checked_text(what: str, text: object) -> str:
    """Return the text as a plain str. Formatting an instance of a subclass of str, such as a member of an Enum, may give another
    text.
    """
    if not isinstance(text, str):
        raise InvalidMessageError(f"{what} must be a str, not {type(text).__name__}")
    if "\x01" in text or "\x02" in text or "\x00" in text:
        raise InvalidMessageError(
            f"{what} {shown(text)} holds a control character 0, 1 or 2, which no property may have on the wire; remove it"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidMessageError(f"{what} {shown(text)} holds a lone surrogate and has no UTF-8 form; remove it") from None
    return str.__str__(text)


def _check_delay(message: Message) -> None:
    if bool(message.delay_level) + (message.delay is not None) + (message.deliver_at is not None) > 1:
        raise InvalidMessageError("at most one of delay_level, delay and deliver_at may be given; leave the others out")
    if message.delay is not None:
        _check_seconds("delay", message.delay)
    when = message.deliver_at
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise InvalidMessageError(f"deliver_at must be an aware datetime, {when.isoformat()} has no time zone; give it one")
        when = when.timestamp()
    if when is not None:
        _check_seconds("deliver_at", when)
        if when > _EPOCH_MILLISECONDS:
            raise InvalidMessageError(
                f"deliver_at must be in seconds since the epoch, and {shown(when)} looks like milliseconds: divide it by 1000"
            )


def _check_seconds(what: str, seconds: object) -> None:
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise InvalidMessageError(f"{what} must be a number of seconds, not {type(seconds).__name__}")
    if not 0 <= seconds <= _MAX_SECONDS:
        raise InvalidMessageError(f"{what} must be from 0 to {_MAX_SECONDS} seconds, not {shown(seconds)}")


assert set(RESERVED_NAMES) >= {PropertyName.TAGS, PropertyName.KEYS}
