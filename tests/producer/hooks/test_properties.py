"""Properties that hooks add travel with the message; invalid ones are reported and left out."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_async import Hook, SendContext
from rmq_protocol.properties import decode_properties

from ...support.fakes import Cluster, each, refuse, stored
from ..support import batched, message, producer, until
from .support import WAYS

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("name", [*WAYS, "oneway"])
async def test_properties_that_a_hook_adds_are_on_the_wire(cluster: Cluster, name: str) -> None:
    class Adds(Hook):
        def before_send(self, context: SendContext) -> None:
            context.properties["traceparent"] = f"00-{context.attempt}"

    cluster.a.answer = each(refuse(1), stored)
    async with producer(cluster, hooks=[Adds()], oneway_window=0) as sender:
        await (sender.send_oneway(message()) if name == "oneway" else WAYS[name](sender))
        await sender.flush()
    await until(lambda: cluster.sends)
    added = [decode_properties(sent.batch[-1].properties) if name == "batch" else sent.properties for sent in cluster.sends]
    assert [properties["traceparent"] for properties in added] == ["00-1"] if name == "oneway" else ["00-1", "00-2"]
    assert all("UNIQ_KEY" in properties for properties in added)


@pytest.mark.parametrize(
    "properties",
    [
        {"KEYS": "k"},
        {"a\x01": "b"},
        {"a": "b\x02"},
        {"": "x"},
        {"a": ""},
        {"a": 1},
        {1: "a"},
        {"a": "x" * 40_000},
        {" ": "x"},
        {"a": " "},
        {"a": "b\x00"},
        {"a": "\ud800"},
    ],
    ids=[
        "reserved",
        "separator in a name",
        "separator in a value",
        "no name",
        "no value",
        "number",
        "numbered",
        "too long",
        "blank name",
        "blank value",
        "nul",
        "no Unicode",
    ],
)
async def test_properties_that_cannot_be_are_reported_with_their_hook_and_left_out(
    cluster: Cluster, properties: dict[Any, Any], loop_errors: list[dict[str, Any]]
) -> None:
    class Adds(Hook):
        def before_send(self, context: SendContext) -> None:
            context.properties.update(properties)

    hook = Adds()
    async with producer(cluster, hooks=[hook]) as sender:
        await sender.send(message())
        await batched(sender)
    assert set(cluster.sends[0].properties) == {"UNIQ_KEY", "WAIT"}
    text = f"properties that hook {hook.before_send!r} added are left out"
    assert [context["message"] for context in loop_errors] == [text] * 2
    loop_errors.clear()


@pytest.mark.parametrize("name", [*WAYS, "oneway"])
async def test_a_property_that_a_hook_adds_replaces_the_messages_own(cluster: Cluster, name: str) -> None:
    class Adds(Hook):
        def before_send(self, context: SendContext) -> None:
            context.properties["traceparent"] = "the hook's"

    own = message(properties={"a": "b", "traceparent": "mine", "xtraceparent": "other"})
    async with producer(cluster, hooks=[Adds()], oneway_window=0) as sender:
        if name == "batch":
            await sender.send_batch([own])
        elif name == "oneway":
            await sender.send_oneway(own)
        else:
            await (await sender.send_async(own) if name == "async" else sender.send(own))
        await sender.flush()
    await until(lambda: cluster.sends)
    (sent,) = cluster.sends
    text = sent.batch[0].properties.decode() if name == "batch" else sent.fields["i"]
    assert text.endswith("WAIT\x01true\x02a\x01b\x02xtraceparent\x01other\x02traceparent\x01the hook's\x02")
    assert text.count("traceparent") == 2
