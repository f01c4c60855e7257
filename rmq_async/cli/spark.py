"""``rmq spark ...``: the pipelines of the extra ``spark``. They read their arguments themselves, since they also run without this program."""

from __future__ import annotations

from importlib import import_module, util
from typing import Final

import click

from .options import needs_command

__all__ = ["spark"]

PIPELINES: Final = {
    "archive": "A topic into partitioned Parquet, exactly once.",
    "replay": "An archive back into a topic.",
    "publish": "Any table or file that Spark reads into a topic.",
    "dlq-replay": "Dead letters back to where they came from.",
    "reconcile": "What was sent against what the topic holds.",
    "load": "Load from the executors, and its report.",
}


@click.group(invoke_without_command=True, short_help="Pipelines between topics and tables, on Spark.")
@click.pass_context
def spark(context: click.Context) -> int:
    """Pipelines between topics and tables, on Spark (extra ``spark``). Each has a --help of its own."""
    return needs_command(context)


def _pipeline(name: str, summary: str) -> click.Command:
    @click.command(
        name,
        short_help=summary,
        help=summary,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> int:
        if util.find_spec("pyspark") is None:
            raise click.ClickException("Spark is not installed: pip install 'rmq-async[spark]'")
        module = import_module(f"rmq_async.spark.pipelines.{name.replace('-', '_')}")
        code: int = module.main(arguments)
        return code

    return command


for _name, _summary in PIPELINES.items():
    spark.add_command(_pipeline(_name, _summary))
