"""The command ``rmq spark``: runs the pipelines of the extra ``spark``.

They parse their own arguments, because they also run without ``rmq``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from .running import is_installed, needs_command, needs_extra

PIPELINES: Final = {
    "archive": "A topic into partitioned Parquet, exactly once.",
    "replay": "An archive back into a topic.",
    "publish": "Any table or file that Spark reads into a topic.",
    "dlq-replay": "Dead letters back to where they came from.",
    "reconcile": "What was sent against what the topic holds.",
}
_NEEDED: Final = ("pyspark", "pyarrow")
_SHORT_HELP: Final = """\
Usage: rmq spark {name} [OPTIONS]

  {summary}

  Its options are printed where the extra spark is installed: pip install 'rmq-async[spark]'. The page "Command line" of the
  documentation has them too."""


@click.group(
    invoke_without_command=True,
    short_help="Pipelines between topics and tables, on Spark.",
    epilog="What each does and promises, and how to give it to spark-submit: docs/spark.md.",
)
@click.pass_context
def spark(context: click.Context) -> int:
    """Pipelines between topics and tables, on Spark.

    They need the extra `spark` and Java 17 or later. Each pipeline has its own --help. They run in this process (local[*])
    unless --master or spark-submit specifies something else.
    """
    return needs_command(context)


def _pipeline(name: str, summary: str) -> click.Command:
    @click.command(
        name,
        short_help=summary,
        help=f"{summary} `rmq spark {name} --help` prints its options.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="")
    def command(arguments: tuple[str, ...]) -> int:
        if {"--help", "-h"}.intersection(arguments) and not is_installed(_NEEDED):
            click.echo(_SHORT_HELP.format(name=name, summary=summary))
            return 0
        needs_spark()
        module = import_module(f"rmq_async.spark.pipelines.{name.replace('-', '_')}")
        code: int = module.main(arguments)
        return code

    return command


def needs_spark() -> None:
    """Raise ClickException if a package of the extra is not installed."""
    needs_extra("spark", _NEEDED)


for _name, _summary in PIPELINES.items():
    spark.add_command(_pipeline(_name, _summary))
