"""Makes the error for a server's response from the response code, and from the remark if the code has several meanings."""

from __future__ import annotations

from rmq_protocol.constants import ResponseCode

from .errors import AuthenticationError, BrokerError, NotEnoughReplicasError, PermissionDeniedError, QueueNotExistError


def _subclasses(cls: type[BrokerError]) -> list[type[BrokerError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _subclasses(sub))]


_BY_CODE: dict[int, type[BrokerError]] = {
    cls.response_code: cls
    for cls in _subclasses(BrokerError)
    if cls.response_code is not None and "response_code" in cls.__dict__
}
_NO_QUEUE_CODES = (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
"""The codes with which brokers of versions 5.x and 4.9 report that a queue does not exist."""
_NO_QUEUE_REMARK = "request queueId["
_AUTHENTICATION_REMARKS = ("check signature failed", "is not found.", "is disabled.", "username cannot be null")
_ACL_EXCEPTION = "AclException"
"""Part of the remark of a 4.x broker that refuses credentials or permissions. It responds with code 1, where a 5.x broker responds
with 16."""
_TOO_FEW = "in-sync replicas not enough"
_UNREPLICATED_REMARKS = (_TOO_FEW, "[PC_SYNCHRONIZED]", "OS page cache busy")
"""The beginnings of the remarks with which brokers that replicate by DLedger report WAIT_QUORUM_ACK_TIMEOUT (``DLedgerCommitLog``):
brokers of 5.x, brokers of 4.9 in the response to a send, and brokers of 4.9 in the response to a commit. Brokers without DLedger
respond with these remarks before they store a message."""
_BUSY_CODES = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
_PAGE_CACHE_BUSY = "[PC_SYNCHRONIZED]"
_ACL_RIGHTS = ("No default permission", "Need admin permission")


def broker_error(
    code: int,
    remark: str | None,
    *,
    request: str = "",
    broker: str | None = None,
    address: str | None = None,
    counted: bool = False,
) -> BrokerError:
    """Return the error for a server's response.

    Codes 1, 16 and 29 have several meanings, which only the remark distinguishes.

    Args:
        counted: Whether the broker is known to count its in-sync replicas before it stores a message.
    """
    text = remark or ""
    cls = _BY_CODE.get(code, BrokerError)
    if code == ResponseCode.NO_PERMISSION:
        cls = _without_permission(text) or cls
    elif code in _NO_QUEUE_CODES and text.startswith(_NO_QUEUE_REMARK):
        cls = QueueNotExistError
    elif code == ResponseCode.SYSTEM_ERROR and _ACL_EXCEPTION in text:
        cls = PermissionDeniedError if any(part in text for part in _ACL_RIGHTS) else AuthenticationError
    elif counted and code == ResponseCode.SYSTEM_ERROR and text.startswith(_TOO_FEW):
        cls = NotEnoughReplicasError
    return cls(text, code=code, request=request, broker=broker, address=address)


def _without_permission(text: str) -> type[BrokerError] | None:
    """Return the error class for a remark with code 16. Return None if the usual class for the code applies."""
    if "has no permission to access" in text:
        return PermissionDeniedError
    of_user = text.startswith("User:") or "check signature failed" in text or "username cannot be null" in text
    return AuthenticationError if of_user and any(part in text for part in _AUTHENTICATION_REMARKS) else None


def is_unreplicated(code: int | None, remark: str | None) -> bool:
    """Return whether the broker refused a message that it may have stored, because its replicas did not confirm it in time."""
    return code == ResponseCode.SYSTEM_ERROR and (remark or "").startswith(_UNREPLICATED_REMARKS)


def is_busy(code: int, remark: str | None) -> bool:
    """Return whether a broker is too busy for a request. A busy page cache is reported with code 1 and recognized by the remark."""
    return code in _BUSY_CODES or (code == ResponseCode.SYSTEM_ERROR and (remark or "").startswith(_PAGE_CACHE_BUSY))
