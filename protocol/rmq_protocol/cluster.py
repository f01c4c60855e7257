"""The brokers that a name server knows (``ClusterInfo``, the response body of GET_BROKER_CLUSTER_INFO)."""

from __future__ import annotations

import msgspec

from .json_body import decode_body, encode_body
from .route import BrokerData


class ClusterInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The brokers of all clusters that a name server knows.

    Attributes:
        broker_addr_table: Broker name -> its addresses.
        cluster_addr_table: Cluster -> names of its brokers.
    """

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, tuple[str, ...]] = {}


def decode_cluster_info(body: bytes) -> ClusterInfo:
    """Return the ClusterInfo in a body.

    Broker ids may be quoted or unquoted: name servers leave the quotes out in responses to clients of every version.

    Raises:
        RemoteProtocolError: If the body is not a ClusterInfo, or is larger than MAX_JSON_BODY_SIZE (4 MiB).
    """
    return decode_body(ClusterInfo, body)


def encode_cluster_info(info: ClusterInfo, *, standard: bool = True) -> bytes:
    """Return a ClusterInfo as standard JSON, or with ``standard=False`` in the form that name servers write.

    Raises:
        LocalProtocolError: If a string has no UTF-8 form.
    """
    return encode_body(info, standard=standard)
