"""Hints for error messages about options and columns of Spark's Kafka source and sink: what replaces each of them here, or why
nothing replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PREFIX: Final = "kafka."
_CAST: Final = ": cast() columns in place of it"
_OPTIONS: Final[Mapping[str, str]] = {
    "includeheaders": "headers are always read, as the column properties; leave it out",
    "headers": "headers are the column properties, read and written; leave it out",
    "groupidprefix": "it is called consumerGroupPrefix",
    "kafkaconsumer.polltimeoutms": "it is called pullTimeoutMs",
    "kafka.bootstrap.servers": "the option nameserver gives the addresses of name servers, not of brokers",
    "kafka.group.id": "it is called consumerGroup",
    "kafka.client.id": "client ids are generated; leave it out",
    "kafka.max.poll.records": "it is called pullBatchSize",
    "kafka.request.timeout.ms": "it is called requestTimeoutMs",
    "kafka.delivery.timeout.ms": "it is called sendTimeoutMs",
    "kafka.retries": "it is called sendRetries",
    "kafka.batch.size": "it is called batchBytes",
    "kafka.acks": "it is called requireStatus",
    "kafka.enable.idempotence": "writes are at least once, and copies have an equal RMQ_SPARK_ID",
    "kafka.transactional.id": "writes are at least once, and copies have an equal RMQ_SPARK_ID",
    "kafka.isolation.level": "half messages of transactions are never read; leave it out",
    "kafka.auto.offset.reset": "startingOffsets sets where reads begin, failOnDataLoss whether a loss fails the query",
    "kafka.enable.auto.commit": "it is called commitOffsets, and serves dashboards only",
    "kafka.security.protocol": "it is called tls; accessKey and secretKey, credentialsFile or credentialsProvider sign requests",
    "kafka.ssl.truststore.location": "it is called tlsCaFile and takes PEM",
    "kafka.ssl.keystore.location": "it is called tlsCertFile and tlsKeyFile, which take PEM",
    "kafka.key.deserializer": f"keys is a string, body is binary{_CAST}",
    "kafka.value.deserializer": f"keys is a string, body is binary{_CAST}",
    "kafka.key.serializer": f"keys is a string or an array of them, body is binary or a string{_CAST}",
    "kafka.value.serializer": f"keys is a string or an array of them, body is binary or a string{_CAST}",
    "kafka.compression.type": "single messages above 4 KiB are compressed, batches are not; leave it out",
    "kafka.linger.ms": "rows of a task travel together without a wait; leave it out",
    "kafka.max.request.size": "a message has 4 MiB at most; batchBytes limits the batches",
}
_BARE: Final = frozenset(name.removeprefix(PREFIX) for name in _OPTIONS if name.startswith(PREFIX)) | {
    "auto.commit.interval.ms", "buffer.memory", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "heartbeat.interval.ms",
    "max.block.ms", "max.in.flight.requests.per.connection", "max.partition.fetch.bytes", "max.poll.interval.ms",
    "metadata.max.age.ms", "partition.assignment.strategy", "partitioner.class", "schema.registry.url",
    "session.timeout.ms", "transaction.timeout.ms",
}  # fmt: skip
"""Settings of Kafka's clients, without the prefix that Spark's Kafka source requires."""
_FAMILIES: Final[Mapping[str, str]] = {
    "kafka.sasl.": "accessKey, secretKey and securityToken, credentialsFile or credentialsProvider sign requests",
    "kafka.ssl.": "options of TLS begin with tls",
}
_BARE_FAMILIES: Final = tuple(family.removeprefix(PREFIX) for family in _FAMILIES)
READ_COLUMNS: Final[Mapping[str, str]] = {
    "key": "keys",
    "value": "body",
    "partition": "queueId, with brokerName",
    "headers": "properties",
    "timestamp": "storeTimestamp, or bornTimestamp by the sender's clock",
}
"""For each column of Spark's Kafka source, the corresponding columns of this source, as a part of a sentence."""
SINK_COLUMNS: Final[Mapping[str, str]] = {
    "key": "keys; shardingKey sends rows with the same one to the same queue",
    "value": "body",
    "partition": "queueId, with brokerName",
    "headers": "properties, as map<string,string>",
}
"""For each column of Spark's Kafka sink, the corresponding columns of this sink, as a part of a sentence."""


def option_of_kafka(name: str) -> str | None:
    """Return the hint about an option of Spark's Kafka source or sink, or about a setting of Kafka's clients with or without
    the prefix. The hint is a part of a sentence. Return None if there is no hint.
    """
    name = name.lower()
    if name in _BARE or name.startswith(_BARE_FAMILIES):
        name = PREFIX + name
    if (hint := _OPTIONS.get(name)) is not None:
        return hint
    for family, hint in _FAMILIES.items():
        if name.startswith(family):
            return hint
    return "settings of Kafka's clients are not passed on; leave it out" if name.startswith(PREFIX) else None
