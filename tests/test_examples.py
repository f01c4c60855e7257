"""Every example runs as it stands, without arguments and without a warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "async_callbacks.py": "1000 stored, 0 failed",
    "batch.py": "32 messages, offsets 0 to 31, 1 request",
    "delayed.py": "now\nnow - level 3: in 10 s\nnow - level 3: in 10 s - in an hour\n"
    "now - level 3: in 10 s - in an hour - tomorrow\n",
    "errors.py": "one broker refused, another stored it: 2 attempts\n3 attempts refused, maybe_stored=False\n"
    "no answer in time, maybe_stored=True\nrefused before anything was sent: the body has 4194305 bytes, the limit is 4194304",
    "fastapi_service.py": "201: order 17 paid\n503: not confirmed; may be announced all the same: True\n",
    "oneway.py": "2000 handed over, 2000 arrived",
    "ordered.py": "order-1 created > paid > sent\norder-2 created > paid > sent\norder-3 created > paid > sent",
    "read_back.py": "10 messages in 4 queues\n[b'order 10']\n[b'order 1', b'order 3', b'order 5', b'order 7', b'order 9']",
    "request_reply.py": "apple: 3\npear: 4\nplum: no answer\n",
    "send.py": "SEND_OK: ",
    "test_my_service.py": "4 passed",
    "transaction.py": "order-1 for 60: COMMIT\norder-2 for 60: ROLLBACK\norder-3 for 40: UNKNOWN\nannounced: order-1, order-3\n",
    "tracing.py": "send OrderTopic - SystemBusyError\nsend OrderTopic - SEND_OK\nprocess OrderTopic - ours\ntraces: 1\n"
    "message trace: not stored\nmessage trace: stored\n",
    "your_tests.py": "passed",
}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_runs_and_says_what_it_should(name: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    pytest_or_not = ["-m", "pytest"] if name.startswith("test_") else []
    command = [sys.executable, "-W", "error", *pytest_or_not, str(EXAMPLES / name)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert SAYS[name] in ended.stdout
    assert "Traceback" not in ended.stderr
    assert "Warning" not in ended.stderr


def test_every_example_is_in_the_list_of_examples() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    assert {path.name for path in EXAMPLES.glob("*.py")} == SAYS.keys()
    assert not [name for name in SAYS if f"]({name})" not in listed]
