"""The command ``rmq topic``: lists, creates, describes, copies and deletes topics."""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

from rmq_async import Admin
from rmq_async.admin import is_wanted
from rmq_protocol.route import BrokerData

from .admin_command import admin_command
from .options import PROPERTY, number_option
from .output import Output, plain_table
from .records import fields_of_queue, moment
from .running import needs_command


@click.group(invoke_without_command=True, short_help="List, create, look at, copy and delete topics.")
@click.pass_context
def topic(context: click.Context) -> int:
    """Topics of a cluster."""
    return needs_command(context)


@topic.command("list", short_help="Print the names of the topics.")
@click.option("--system", is_flag=True, help="Include topics of the system, brokers, clusters, retries and dead letters.")
@admin_command()
async def list_topics(admin: Admin, output: Output, system: bool) -> None:
    """Print the names of the topics that a name server knows."""
    names = await admin.topics()
    if not system:
        info = await admin.cluster_info()
        own = {*info.broker_addr_table, *info.cluster_addr_table}
        names = tuple(name for name in names if is_wanted(name, name, "*", own))
    for name in names:
        output.record({"topic": name})
        output.line(name)


@topic.command(short_help="Create a topic, or change its settings.")
@click.argument("name", metavar="TOPIC")
@number_option("--queues", most=65535, default=8, help="Queues on each broker.")
@number_option("--read-queues", most=65535, help="Queues to read from; default: the same.")
@click.option("--perm", type=click.Choice(["2", "4", "6"]), default="6", show_default=True, help="2: write, 4: read, 6: both.")
@click.option("--order", is_flag=True, help="An ordered topic: the name servers record its queues.")
@click.option("--attribute", "attributes", type=PROPERTY, multiple=True, help="Such as message.type=FIFO; may be given again.")
@click.option(
    "--cluster", metavar="NAME", help="On the brokers of this cluster; default: on all brokers, if there is one cluster."
)
@click.option("--broker", metavar="NAME", help="On this broker only.")
@admin_command()
async def create(
    admin: Admin, output: Output, name: str, perm: str, attributes: tuple[tuple[str, str], ...], **settings: Any
) -> None:
    """Create TOPIC, or change its settings, and wait until a name server shows it."""
    await admin.create_topic(name, perm=int(perm), attributes=dict(attributes), **settings)
    brokers = sorted({data.broker_name for data in (await admin.topic_route(name)).queue_datas})
    output.record({"topic": name, "brokers": brokers})
    output.line(f"{name} is on {', '.join(brokers)}")


@topic.command(short_help="Print on which brokers a topic is.")
@click.argument("name", metavar="TOPIC")
@admin_command()
async def route(admin: Admin, output: Output, name: str) -> None:
    """Print the brokers that have TOPIC, with their numbers of queues."""
    found = await admin.topic_route(name)
    brokers = {data.broker_name: data for data in found.broker_datas}
    table = plain_table("broker", "cluster", "addresses", write=True, read=True, perm=True)
    for queues in sorted(found.queue_datas, key=lambda data: data.broker_name):
        broker = brokers.get(queues.broker_name, BrokerData(queues.broker_name))
        output.record(
            {
                "topic": name,
                "broker": queues.broker_name,
                "cluster": broker.cluster,
                "addresses": {str(number): address for number, address in sorted(broker.broker_addrs.items())},
                "write_queues": queues.write_queue_nums,
                "read_queues": queues.read_queue_nums,
                "perm": queues.perm,
                "order_conf": found.order_topic_conf,
            }
        )
        table.add_row(
            queues.broker_name,
            broker.cluster,
            " ".join(f"{number}={address}" for number, address in sorted(broker.broker_addrs.items())),
            str(queues.write_queue_nums),
            str(queues.read_queue_nums),
            _PERMISSIONS.get(queues.perm & 6, str(queues.perm)),
        )
    output.table(table)


_PERMISSIONS: Final = {0: "-", 2: "write", 4: "read", 6: "both"}


@topic.command(short_help="Print what each queue of a topic holds.")
@click.argument("name", metavar="TOPIC")
@admin_command()
async def offsets(admin: Admin, output: Output, name: str) -> None:
    """Print the first offset, the next offset and the time of the last message of each queue of TOPIC."""
    table = plain_table("queue", first=True, next=True, messages=True, last=False)
    for queue, stats in (await admin.topic_stats(name)).queues.items():
        output.record({**fields_of_queue(queue), **msgspec.structs.asdict(stats)})
        table.add_row(
            f"{queue.broker_name}:{queue.queue_id}",
            str(stats.min_offset),
            str(stats.max_offset),
            str(stats.max_offset - stats.min_offset),
            moment(stats.last_store_time_ms),
        )
    output.table(table)


@topic.command(short_help="Delete a topic and its messages.")
@click.argument("name", metavar="TOPIC")
@click.option("--cluster", metavar="NAME", help="On the brokers of this cluster; default: on all.")
@admin_command()
async def delete(admin: Admin, output: Output, name: str, cluster: str | None) -> None:
    """Delete TOPIC, its messages and its route. There is no confirmation, and the deletion cannot be undone."""
    await admin.delete_topic(name, cluster=cluster)
    output.record({"topic": name, "deleted": True})
    output.line(f"{name} is deleted")


@topic.command(short_help="Copy the settings of topics to another broker.")
@click.option("--from", "source", required=True, metavar="BROKER", help="Name of the broker to copy from.")
@click.option("--to", "target", required=True, metavar="BROKER", help="Name of the broker to copy to.")
@click.option(
    "--topics", "patterns", multiple=True, metavar="PATTERN", help="Such as 'orders*'; default: all; may be given again."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@admin_command()
async def sync(admin: Admin, output: Output, source: str, target: str, patterns: tuple[str, ...], dry_run: bool) -> None:
    """Give a broker that was added to a cluster the topics of another broker, with the same settings.

    Messages stay where they are. Running producers and consumers also use the new broker within their route_poll_interval (30
    s). System topics, retry and dead-letter topics, and static topics are left out.
    """
    table = plain_table("topic", "action", write=True, read=True, perm=True)
    for each in await admin.sync_topics(source, target, topics=patterns or "*", dry_run=dry_run):
        config = each.config
        output.record(
            {
                "topic": each.topic,
                "action": each.action,
                "done": not dry_run,
                "write_queues": config.write_queue_nums,
                "read_queues": config.read_queue_nums,
                "perm": config.perm,
                "order": config.order,
                "attributes": config.attributes,
            }
        )
        table.add_row(
            each.topic,
            each.action,
            str(config.write_queue_nums),
            str(config.read_queue_nums),
            _PERMISSIONS.get(config.perm & 6, str(config.perm)),
        )
    output.table(table)
    if dry_run:
        output.line("Nothing was done.")
