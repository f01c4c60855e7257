"""Servers that do as a test sets them, and a raw client. All of them stand on the connection of the shipped ``ScriptedPeer``, which
fits where the whole dialogue is one transcript.

``Peer`` answers by a function, ``ThreadedPeer`` does so in a thread of its own; ``Broker``, ``PullBroker`` and ``NameServer`` are
peers that know their part, and a ``Cluster`` is both. ``answers`` has what they may answer,
and ``resolving`` sets what host names lead to.
"""

# ruff: noqa: F401

from .answers import (
    AfterNext,
    Answer,
    MostUnderWay,
    cut,
    each,
    echo,
    fields,
    late,
    raw,
    refuse,
    reset,
    silence,
    status,
    stored,
    twice,
)
from .broker import SENDS, Broker, OnPull, PullBroker, Sent, push
from .cluster import TOPIC, Cluster
from .name_server import NameServer, route
from .names import Names, resolving
from .peer import Link, Peer, frame, response
from .raw_client import UNIQUE_ID, RawClient, oneway, pull_fields, send_fields
from .second_ports import with_second_ports
from .threaded import ThreadedPeer
