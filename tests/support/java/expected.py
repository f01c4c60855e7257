"""Key lines of the transcript, by case: without them nothing was seen, however equal two transcripts are.

Each text must occur in a line of its case, and every case must end by itself. What a real broker says besides is compared line by
line in tests/cluster/test_java_real.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["KEY_LINES", "missing_key_lines"]

KEY_LINES: Final[Mapping[str, Sequence[str]]] = {
    "sync": (
        "full SEND_OK queue=2 offset=0",
        "body=all of it tags=TagA keys=key1 key2 flag=7",
        "colour=blå",
        "turns [0/0, 0/1, 1/0, 1/1, 2/0, 2/1, 3/0, 3/1]",
        "made broker-a perm=6 read=4 write=4",
    ),
    "refused": ("queue 99 failed: MQBrokerException 29", "large body failed: MQBrokerException 13", "stored 0"),
    "async": ("answer SEND_OK queue=1 offset=8", "answer MQBrokerException 29", "async-8]"),
    "oneway": ("queue=1 offset=4",),
    "batch": ("five SEND_OK queue=1 offset=0 msgId=5x", "body=batched-4 tags=Tag4 keys=key4", "queue=1 offset=5"),
    "ordered": ("queue 0 holds [step-2, step-5, step-8, step-11]", "queue 3 holds []"),
    "compressed": ("sysFlag=256", "sysFlag=512", "sysFlag=768", "body=5200bytes#4f36e094"),
    "delay-level": ("came in time queue=1 offset=0", "DELAY=1"),
    "timer": (
        "four days failed: MQBrokerException 13",
        "came in time topic=java-timer broker=broker-a body=at a time",
        "came in time topic=java-timer broker=broker-a body=in milliseconds",
        "came in time topic=java-timer broker=broker-a body=in seconds",
        "came in time topic=java-timer broker=broker-a body=in the past",
    ),
    "recall": ("handle topic=java-recall broker=broker-a", "recalled id=the same", "came kept"),
    "transaction": ("commit: SEND_OK COMMIT_MESSAGE", "rollback: SEND_OK ROLLBACK_MESSAGE", "queue=0 offset=1"),
    "transaction-check": ("body=unknown then commit", "body=throw then commit", "checked unknown then rollback: sysFlag=0"),
    "transaction-undecided": ("given up topic=TRANS_CHECK_MAX_TIME_TOPIC", "checks {unknown then unknown=3}, visible 0"),
    "request-reply": (
        "body=answer to question",
        "asynchronous [answer to first, answer to second]",
        "no answer failed: RequestTimeoutException",
        "replied to one that is gone: MQBrokerException 1 push reply message fail",
    ),
    "request-to-python": ("body=Python says short", "body=12000bytes#", "from=Python"),
    "request-from-python": ("replied large: SEND_OK TTL=70000", "replied one: SEND_OK", "replied two: SEND_OK"),
    "concurrent": ("java-concurrent/3 6 of 6", "came after a restart [body-24, body-25, body-26, body-27]"),
    "balance": (
        "first informed that another came: true",
        "second informed that the other left: true",
        "first took 2, second took 2",
        "one member left: {0=second, 1=second, 2=second, 3=second}",
    ),
    "orderly": ("queue 1 got [body-1/0, body-4/0, body-4/1, body-4/2, body-7/0, body-10/0]",),
    "tags": ("came [tagged AaTag, tagged TagA, tagged TagA, tagged TagC]", "java-tags/0 7 of 7"),
    "sql": ("start failed: MQClientException 1 The broker does not support consumer to filter message by SQL92",),
    "broadcast": ("member got [body-0, body-1, body-2, body-3]",),
    "retry": (
        "delivered 1 topic=java-retry broker=broker-a body=once tags=TagR keys=key",
        "delivered 2 topic=java-retry broker=broker-a body=always",
        "dead reconsumed=3 sysFlag=0 topic=%DLQ%java-retry-group broker=broker-a body=always",
        "dead reconsumed=1 sysFlag=0 topic=%DLQ%java-retry-group broker=broker-a body=poison",
    ),
    "retry-stock-delay": ("delivered 1 topic=java-stock-delay", "waited 10 s"),
    "retry-orderly": ("delivered 2 topic=java-retry-orderly broker=broker-a body=always", "java-retry-orderly/0 2 of 2"),
    "lite-pull": ("polled {0=[0, 1, 2, 3, 4], 1=[0, 1, 2, 3, 4], 2=[0, 1, 2, 3, 4], 3=[0, 1, 2, 3, 4]}", "java-lite/3 5 of 5"),
    "lite-pull-assigned": ("from 6 {1=[6, 7, 8, 9]}", "from the end {1=[10]}", "committed 7"),
    "admin-topic": (
        "configuration read=3 write=2 perm=6 order=true",
        "java-admin/broker-a/1 0 to 2 updated true",
        "configuration after failed: MQBrokerException 17",
        "created again SEND_OK offset=0",
    ),
    "admin-cluster": ("cluster DefaultCluster [broker-a]", "addresses={0=BROKER}", "version=V5_5_0"),
    "admin-offsets": ("min=0 max=5", "earliest first message", "search long ago 0, between 3, at 3, tomorrow 5"),
    "admin-messages": ("by offset id queue=0 offset=0", "by key pear [first, second]", "query by unique id 1 true"),
    "admin-key-values": ("value red", "all {colour=red}", "value after failed: MQClientException 22"),
    "admin-groups": ("group java-made-group retries=5 retryQueues=2", "after false"),
    "admin-connections": (
        "producer producers JAVA version=513",
        "consumer CLIENT JAVA version=513",
        "subscribed java-connected to TagA || TagB",
        "running CONSUME_PASSIVELY queues=[java-connected/0, java-connected/1]",
        "consumed directly CR_SUCCESS order=false, deliveries 2",
        "consumers after failed: MQBrokerException 206",
    ),
    "admin-reset": ("set to 1: [java-reset/0 1 of 4]",),
    "pop": (
        "popped [java-pop/-1]",
        "java-pop/3 3 of 3",
        "waited for 10 s",
        "body=body-5 tags=null keys=null flag=0 reconsumed=1",
    ),
    "interop-receive": ("body=from Python ☕ 7 tags=Tag1 keys=key7 second flag=7", "body=batched 2 tags=Batch keys=batch2"),
    "interop-send": ("sent SEND_OK",),
}


def missing_key_lines(case: str, lines: Sequence[str]) -> list[str]:
    """What is not as it must be: key lines that are not there, and lines that say the case broke off."""
    absent = [f"no line with {text!r}" for text in KEY_LINES[case] if not any(text in line for line in lines)]
    return absent + [line for line in lines if line.startswith("!")]
