"""Child processes: responses match their requests, and children end with their parents."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from headtohead.child_process import AsyncChildProcess, ChildExitedError, ChildProcess, RequestFailedError

ECHO = """
import os, time
from headtohead.child_process import ParentChannel

channel = ParentChannel()
print("printed text must not reach the parent's side of the channel")
for request in channel.iter_requests():
    number = request["request"]
    if request.get("started"):
        open(request["started"], "a").write(f"{request['text']}\\n")
    time.sleep(request.get("seconds", 0))
    if request["text"] == "die":
        os.kill(os.getpid(), 9)
    if request["text"] == "fail":
        channel.send({"request": number, "event": "failed", "message": "it failed"})
        continue
    channel.send({"request": number, "event": "result", "text": request["text"]})
    channel.send({"request": number, "event": "done"})
"""


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module that responds to each request with its text."""
    (tmp_path / "echo_child.py").write_text(ECHO)
    paths = [str(tmp_path), str(Path(__file__).parents[1] / "src")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return "echo_child"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


async def request_text(child: AsyncChildProcess, text: str, **options: Any) -> str:
    async with aclosing(child.stream_responses({"text": text, **options})) as responses:
        return str((await anext(responses))["text"])


async def wait_for_line(path: Path, line: str) -> None:
    while not path.is_file() or line not in path.read_text().splitlines():
        await asyncio.sleep(0.02)


def test_the_answer_to_a_cancelled_request_is_dropped_and_not_given_to_the_next(echo: str, tmp_path: Path) -> None:
    async def check() -> None:
        child = AsyncChildProcess(echo, idle_seconds=60, response_seconds=60)
        started = tmp_path / "started"
        first = asyncio.create_task(request_text(child, "first", seconds=0.5, started=str(started)))
        await wait_for_line(started, "first")
        first.cancel()
        assert await request_text(child, "second") == "second"
        assert child.num_active_requests == 0
        await child.end()

    run(check())


def test_a_request_cancelled_while_it_waits_is_never_started(echo: str, tmp_path: Path) -> None:
    async def check() -> None:
        child = AsyncChildProcess(echo, idle_seconds=60, response_seconds=60)
        started = tmp_path / "started"
        first = asyncio.create_task(request_text(child, "first", seconds=0.5, started=str(started)))
        await wait_for_line(started, "first")
        second = asyncio.create_task(request_text(child, "second", started=str(started)))
        await asyncio.sleep(0.05)
        second.cancel()
        assert await first == "first"
        assert await request_text(child, "third", started=str(started)) == "third"
        assert started.read_text().splitlines() == ["first", "third"]
        await child.end()

    run(check())


def test_a_killed_child_is_reported_and_the_next_request_starts_another(echo: str) -> None:
    async def check() -> None:
        child = AsyncChildProcess(echo, idle_seconds=60, response_seconds=60)
        with pytest.raises(ChildExitedError, match="exited before it answered"):
            await request_text(child, "die")
        assert await request_text(child, "again") == "again"
        with pytest.raises(RequestFailedError, match="it failed"):
            await request_text(child, "fail")
        await child.end()

    run(check())


def test_a_child_that_does_not_answer_in_time_is_killed(echo: str) -> None:
    async def check() -> None:
        child = AsyncChildProcess(echo, idle_seconds=60, response_seconds=60)
        assert await request_text(child, "first") == "first"
        child._response_seconds = 0.2
        with pytest.raises(ChildExitedError, match="exited before it answered"):
            await request_text(child, "slow", seconds=60)
        assert child.pid is None

    run(check())


def test_an_idle_child_exits_and_a_request_that_comes_meanwhile_is_answered(echo: str) -> None:
    async def check() -> None:
        child = AsyncChildProcess(echo, idle_seconds=0.05, response_seconds=60)
        assert await request_text(child, "first") == "first"
        while child._process is not None and not child._process.stdin.is_closing():  # type: ignore[union-attr]
            await asyncio.sleep(0.005)
        assert await request_text(child, "second") == "second"
        await child.end()

    run(check())


def test_messages_of_an_abandoned_request_are_dropped(echo: str) -> None:
    child = ChildProcess(echo, log_path=Path(os.devnull))
    child.request({"text": "first"})
    messages = child.iter_messages()
    assert next(messages) == {"event": "result", "text": "first"}
    child.request({"text": "second"})
    assert next(messages) == {"event": "result", "text": "second"}
    child.terminate()
    child.close_pipes()


def test_a_killed_child_has_an_exit_reason_and_its_messages_end(echo: str) -> None:
    child = ChildProcess(echo, log_path=Path(os.devnull))
    child.request({"text": "die"})
    assert list(child.iter_messages()) == []
    assert child.exit_reason == "was killed by signal 9"
    child.request({"text": "nobody reads this"})
    child.close_pipes()


def test_a_child_in_the_middle_of_a_request_ends_with_its_parent(echo: str, tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom headtohead.child_process import ChildProcess\n"
        f"child = ChildProcess({echo!r}, log_path=Path('/dev/null'))\n"
        f"child.request({{'text': 'long', 'seconds': 600, 'started': {str(tmp_path / 'started')!r}}})\n"
        "print(child.process.pid, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").is_file():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)
