"""What failures of requests that give messages back mean."""

from __future__ import annotations

import pytest

from rmq_async.broker_answers import broker_error
from rmq_async.consumer.handling.redelivery import Refusal, refusal_of
from rmq_async.errors import (
    BrokerNotFoundError,
    ConnectError,
    ConnectionLostError,
    NameServerError,
    RequestTimeoutError,
    RocketMQError,
)
from rmq_protocol.errors import RemoteProtocolError

ACL_1 = "org.apache.rocketmq.acl.common.AclException: "


@pytest.mark.parametrize(
    ("code", "remark", "wanted"),
    [
        (16, "the broker[10.0.0.5] sending message is forbidden", Refusal.UNABLE),
        (16, "the topic[%RETRY%g] sending message is forbidden", Refusal.UNABLE),
        (16, "User:rocketmq has no permission to access Group:g from 10.0.0.9", Refusal.FORBIDDEN),
        (16, "User:rocketmq is not found.", Refusal.FORBIDDEN),
        (1, ACL_1 + "No default permission for %RETRY%g", Refusal.FORBIDDEN),
        (1, ACL_1 + "Check signature failed for accessKey=a", Refusal.FORBIDDEN),
        (14, "service not available now. It may be caused by: the broker's disk is full [CL: 0.95]", Refusal.UNABLE),
        (1, "SERVICE_NOT_AVAILABLE", Refusal.UNABLE),
        (1, "CREATE_MAPPED_FILE_FAILED", Refusal.UNABLE),
        (1, "no master available along with 10.0.0.5", Refusal.UNABLE),
        (1, "topic[%RETRY%g] not exist", Refusal.UNABLE),
        (1, "something else", Refusal.UNABLE),
        (26, "subscription group not exist, g", Refusal.UNABLE),
        (17, "topic[%RETRY%g] not exist", Refusal.UNABLE),
        (3, " request type 36 not supported", Refusal.UNABLE),
        (2, "[REJECTREQUEST]system busy, start flow control for a while", Refusal.BUSY),
        (215, "flow control", Refusal.BUSY),
        (1, "OS_PAGE_CACHE_BUSY", Refusal.BUSY),
        (1, "look message by offset failed, 4711", Refusal.GONE),
        (1, "FLUSH_DISK_TIMEOUT", Refusal.STORED),
        (1, "FLUSH_SLAVE_TIMEOUT", Refusal.STORED),
        (1, "SLAVE_NOT_AVAILABLE", Refusal.STORED),
        (1, "IN_SYNC_REPLICAS_NOT_ENOUGH", Refusal.UNSURE),
        (1, "in-sync replicas not enough", Refusal.UNSURE),
        (1, "putMessageResult is null", Refusal.UNSURE),
        (1, "PROPERTIES_SIZE_EXCEEDED", Refusal.ILLEGAL),
        (1, "MESSAGE_ILLEGAL", Refusal.ILLEGAL),
        (13, "the message is illegal, maybe msg body or properties length not matched.", Refusal.ILLEGAL),
    ],
)  # fmt: skip
def test_answer_means(code: int, remark: str, wanted: Refusal) -> None:
    assert refusal_of(broker_error(code, remark)) is wanted


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (RequestTimeoutError("no answer", maybe_stored=True), Refusal.UNSURE),
        (RequestTimeoutError("not sent"), Refusal.UNABLE),
        (ConnectionLostError("closed", maybe_stored=True), Refusal.CUT),
        (ConnectionLostError("closed"), Refusal.CUT),
        (ConnectError("refused"), Refusal.UNABLE),
        (BrokerNotFoundError("no master"), Refusal.UNABLE),
        (NameServerError("none answers"), Refusal.UNABLE),
        (RemoteProtocolError("no fields"), Refusal.UNSURE),
    ],
)
def test_failure_without_an_answer_means(error: RocketMQError, wanted: Refusal) -> None:
    assert refusal_of(error) is wanted
