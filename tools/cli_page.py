"""Writes the page of commands, with the help that each command shows: ``python tools/cli_page.py > docs/cli.md``."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from copy import copy
from importlib import import_module
from typing import Final

import click

from rmq_async.cli.app import rmq
from rmq_async.cli.options import client_options
from rmq_async.cli.spark import spark

WIDTH: Final = 100
_OPENING: Final = """\
# Command line

Every command of `rmq`, with its options. It comes with the extra `cli`: `pip install 'rmq-async[cli]'`. This page is made from
what `--help` says, by `python tools/cli_page.py`.

- Results go to stdout, lines for people or with `--json` one object a line; errors are one line on stderr.
- Exit codes: 0, 1 for failure, 2 for wrong use, 130 after Ctrl-C, 143 after SIGTERM; a second signal ends a command at once.
  After a first signal `rmq consume`, `rmq server` and `rmq outbox relay` end with 0, a relay with `--drain` with 1.
- A reader that goes away (`| head`) ends a command quietly.
- `--namesrv "a:9876;b:9876"` names the cluster, else the environment's `NAMESRV_ADDR`; `rmq demo` does not look at that.
- `--access-key` signs requests, with the secret in the environment's `RMQ_SECRET_KEY` (and a token in `RMQ_SECURITY_TOKEN`):
  other users of a machine see arguments, not the environment. What TLS can refuse, and why: [security](security.md#tls).
- `rmq outbox` takes its `--database` from the environment's `RMQ_OUTBOX_DATABASE` too, the place for a URL with a password.
- `RMQ_TRACEBACK=1` shows where an error that is a bug came from.

A copy of a topic's last hour, its bodies as lines of text, and what is in it by key:

```sh
rmq pull OrderTopic --from 1h --json | rmq send Copy --json
rmq pull OrderTopic --from 1h | rmq send Lines -
rmq pull OrderTopic --from 1h --json | jq -r '.keys[]' | sort | uniq -c
rmq message query OrderTopic order-17
```

A copy has what the senders gave: body, tags, keys, flag, sharding key and properties, in the order of each queue. It does not have
the unique id (each copy gets its own), the origin and the counters of a retry or dead letter, delays that are over, and marks of
transactions: a dead letter that is copied is an ordinary message. Texts that no message may hold, blank ones and those with control
characters 0 to 2, are left out and counted on stderr. Lines of `rmq message query --json` and
`rmq group dead-letters --json` can be sent in the same way, and so can objects of your own, such as
`{"body": "x", "tags": "t", "keys": ["k"], "properties": {"a": "1"}}`; messages without `broker` and `queue_id` go to any
queue, or to that of their sharding key (property `__SHARDINGKEY`).

A worker without a program: each message of a topic becomes a file in `orders/`, and a body that is no JSON is dead-lettered. If
the file cannot be written, the command ends with another exit code, so its message comes again.

```sh
mkdir -p orders
rmq consume OrderTopic --group archive --from earliest --concurrency 4 \\
    --exec 'order=$(jq -c .) || exit 65; printf "%s\\n" "$order" > "orders/$RMQ_MSG_ID"'
```

`rmq top` is a live view of the cluster, here of one with a broker that does not respond; `rmq top --once --json` gives its
figures to scripts:

![Topics, groups and brokers in a terminal](rmq_top.svg)
"""


def page() -> str:
    """Returns the page. The extra ``spark`` must be installed: its pipelines print the help of their options themselves."""
    first, *others = _sections(rmq, "rmq", None)
    return "\n".join([_OPENING, first, _shared_options(), *others])


def _sections(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    if parent is not None and parent.command is spark:
        text, shared = _pipelines_help(name), ""
    else:
        text, shared = _own_help(command, context)
    yield f"## {context.command_path}\n\n```text\n{text}\n```\n{shared}"
    if isinstance(command, click.Group):
        for each in sorted(command.list_commands(context)):
            found = command.get_command(context, each)
            assert found is not None
            yield from _sections(found, each, context)


def _own_help(command: click.Command, context: click.Context) -> tuple[str, str]:
    """Returns the help without the options that many commands share, and the line that names these."""
    shared = {_record(each, context): each for each in _with_shared_options.params}
    found = [each for each in command.params if _record(each, context) in shared]
    if not found:
        return command.get_help(context), ""
    own = copy(command)
    own.params = [each for each in command.params if each not in found]
    names = [max(each.opts, key=len) for each in found]
    which = "All" if len(names) == len(shared) else ", ".join(f"`{name}`" for name in names)
    return own.get_help(context), f"\n{which} of the [shared options](#shared-options).\n"


def _record(parameter: click.Parameter, context: click.Context) -> object:
    """Returns the help record of an option."""
    return parameter.get_help_record(context)


@click.command("...")
@client_options
def _with_shared_options(**_: object) -> None: ...


def _shared_options() -> str:
    context = click.Context(
        _with_shared_options, info_name="rmq ...", terminal_width=WIDTH, max_content_width=WIDTH, help_option_names=[]
    )
    return f"## Shared options\n\nMost commands have these.\n\n```text\n{_with_shared_options.get_help(context)}\n```\n"


def _pipelines_help(name: str) -> str:
    text = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        with redirect_stdout(text):
            import_module(f"rmq_async.spark.pipelines.{name.replace('-', '_')}").main(["--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return text.getvalue().rstrip()


if __name__ == "__main__":
    click.echo(page().rstrip())
