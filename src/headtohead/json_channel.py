"""JSON lines over stdin and stdout between a process and the child processes that it starts.

Every request carries an id, and every answer repeats it, so that an answer to a cancelled request is dropped and never
mistaken for the answer to the next one. A child exits when its parent closes the channel or dies.

`ParentChannel` is the child's end. A parent uses `ChildProcess` for a child that works on one request at a time, or
`RequestChannel` (asyncio) for a child that is started on demand and shared by concurrent requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from headtohead import safe_open
from headtohead.errors import RunFolderError

MAX_LINE_BYTES = 64 << 20
TERMINATE_TIMEOUT_SECONDS = 5.0
SINGLE_THREAD_ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
JsonDict = dict[str, Any]


class ChildExitedError(Exception):
    """The child process exited, or was killed, before it answered."""


class RequestFailedError(Exception):
    """The child process answered with an error message."""


class ParentChannel:
    """The child's end: read requests from stdin and write answers to stdout."""

    def __init__(self, *, outlives_parent: bool = False) -> None:
        """Take over stdout; anything printed afterwards goes to stderr.

        With `outlives_parent`, the process continues after the parent has exited.
        """
        self._outlives_parent = outlives_parent
        self._output = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def send(self, message: JsonDict) -> None:
        """Write one message. If the parent has exited, exit too, unless this process outlives it."""
        try:
            self._output.write(json.dumps(message) + "\n")
        except BrokenPipeError:
            if not self._outlives_parent:
                os._exit(1)

    def listen(
        self, on_message: Callable[[JsonDict], None], on_close: Callable[[], None] = lambda: os._exit(0)
    ) -> None:
        """Pass every line to `on_message` in a background thread; call `on_close` when the parent closes the channel.

        By default the process exits immediately, even during a request: two processes must not write one run.
        """

        def read() -> None:
            for line in sys.stdin:
                on_message(json.loads(line))
            on_close()

        threading.Thread(target=read, daemon=True).start()

    def requests(self) -> Iterator[JsonDict]:
        """Yield requests in order, without those that were cancelled while they waited."""
        inbox: SimpleQueue[JsonDict] = SimpleQueue()
        cancelled: set[int] = set()
        self.listen(lambda message: cancelled.add(message["cancel"]) if "cancel" in message else inbox.put(message))
        while True:
            request = inbox.get()
            if request.get("request") not in cancelled:
                yield request


class ChildProcess:
    """A child process that works on one request at a time, and answers with any number of messages."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        log_path: Path | None = None,
        clean_folder: Path | None = None,
    ) -> None:
        """Start `python -m module`. Its stderr goes to `log_path`, or to the file given to `copy_stderr` later.

        With `clean_folder`, it runs in that folder and inherits nothing from the environment of this process.
        """
        self._request_ids, self._latest_request = count(1), 0
        with contextlib.ExitStack() as stack:
            log: int | IO[bytes] = subprocess.PIPE if log_path is None else subprocess.DEVNULL
            if log_path not in (None, Path(os.devnull)):
                log = stack.enter_context(safe_open.append_to_file(log_path))
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**({} if clean_folder else os.environ), **(environment or {})},
                cwd=clean_folder,
                start_new_session=True,  # Ctrl-C goes to the parent only, which ends its children in order
            )

    @property
    def is_running(self) -> bool:
        """True until the process has exited."""
        return self.process.poll() is None

    @property
    def exit_reason(self) -> str:
        """Wait for the process and describe how it ended: "exited with code 1" or "was killed by signal 9"."""
        code = self.process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"

    def request(self, message: JsonDict) -> None:
        """Send a request. From now on, `messages` drops answers to earlier requests."""
        assert self.process.stdin is not None
        self._latest_request = next(self._request_ids)
        with contextlib.suppress(BrokenPipeError):  # `messages` ends, and the caller sees that the child has exited
            self.process.stdin.write(json.dumps({**message, "request": self._latest_request}).encode() + b"\n")
            self.process.stdin.flush()

    def messages(self) -> Iterator[JsonDict]:
        """Yield messages until the process exits, except answers to requests before the latest."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: JsonDict = json.loads(line)
            if message.pop("request", self._latest_request) == self._latest_request:
                yield message

    def ask(self, message: JsonDict, timeout: float) -> JsonDict:
        """Send a request and return its first answer.

        Raise ChildExitedError if the child exits first. A child that takes longer than `timeout` seconds is killed.
        """
        timed_out = threading.Event()

        def kill() -> None:
            timed_out.set()
            self.process.kill()

        timer = threading.Timer(timeout, kill)
        timer.start()
        try:
            self.request(message)
            for answer in self.messages():
                return answer
        finally:
            timer.cancel()
        reason = f"took longer than {timeout:g} s" if timed_out.is_set() else self.exit_reason
        raise ChildExitedError(reason)

    def copy_stderr(self, log_path: Path) -> threading.Thread:
        """Append stderr to a file in a background thread and return the thread.

        Write errors are ignored: the run folder may have been removed, or the disk may be full.
        """

        def copy() -> None:
            assert self.process.stderr is not None
            for line in self.process.stderr:
                with contextlib.suppress(OSError, RunFolderError), safe_open.append_to_file(log_path) as log:
                    log.write(line)

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        return thread

    def close_input(self) -> None:
        """Close stdin, which tells the child that no more requests follow."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def terminate(self, timeout: float = TERMINATE_TIMEOUT_SECONDS) -> None:
        """Send SIGTERM; kill the process if it is still running after `timeout` seconds."""
        self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close_pipes(self) -> None:
        """Close stdin, stdout and stderr of the child."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class RequestChannel:
    """A child process shared by concurrent requests: started on demand, restarted after a crash, closed when idle."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        idle_seconds: float,
        response_seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the command `python -m module`; the first request starts it.

        The child is closed after `idle_seconds` without requests, and killed if a request waits longer than
        `response_seconds` for its next answer.
        """
        self._command = (sys.executable, "-m", module, *arguments)
        self._idle_seconds, self._response_seconds = idle_seconds, response_seconds
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Queue[JsonDict | None]] = {}
        self._request_ids = count(1)
        self._start_lock = asyncio.Lock()
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, or None if it is not running."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def num_active_requests(self) -> int:
        """The number of requests that have not been answered completely."""
        return len(self._answers)

    async def stream(self, message: JsonDict) -> AsyncGenerator[JsonDict]:
        """Yield the answers to a request. Closing the generator cancels the request."""
        request_id, answers = next(self._request_ids), asyncio.Queue[JsonDict | None]()
        is_active = False
        try:
            await self._ensure_started()
            self._answers[request_id], is_active = answers, True
            self._send({**message, "request": request_id})
            while True:
                answer = await self._next_answer(answers)
                is_active = answer is not None and answer["event"] not in ("done", "failed")
                if answer is None:
                    raise ChildExitedError("the process exited before it answered")
                if answer["event"] == "failed":
                    raise RequestFailedError(answer["message"])
                if answer["event"] == "done":
                    return
                yield answer
        finally:
            self._answers.pop(request_id, None)
            if is_active and self.pid is not None:
                self._send({"cancel": request_id})
            if not self._answers:
                self._set_idle_timer()

    async def end(self) -> None:
        """Kill the child and wait until it has exited."""
        self._cancel_idle_timer()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            if self._reader is not None:
                await self._reader

    async def _next_answer(self, answers: asyncio.Queue[JsonDict | None]) -> JsonDict | None:
        """Return the next answer, or None if the child exited or timed out. A child that times out is killed."""
        try:
            async with asyncio.timeout(self._response_seconds):
                return await answers.get()
        except TimeoutError:
            await self.end()
            return None

    async def _ensure_started(self) -> None:
        """Start the child unless it is running."""
        self._cancel_idle_timer()
        async with self._start_lock:
            if self._process is not None and self._process.stdin is not None and self._process.stdin.is_closing():
                assert self._reader is not None
                await self._reader  # the idle child has been told to exit; wait for it
            if self.pid is None:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    limit=MAX_LINE_BYTES,
                    env=self._environment,
                )
                self._reader = asyncio.create_task(self._read(self._process))

    def _send(self, message: JsonDict) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):  # the child has exited, and `_read` reports it
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Route each answer to its request, dropping those of cancelled ones; put None when the child has exited."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                answer = json.loads(line)
                if (answers := self._answers.get(answer.pop("request"))) is not None:
                    answers.put_nowait(answer)
        except (ValueError, OSError):  # a line above the limit, or not JSON
            process.kill()
        await process.wait()
        if self._process is process:
            self._process = None
            for answers in self._answers.values():
                answers.put_nowait(None)

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _set_idle_timer(self) -> None:
        self._cancel_idle_timer()
        self._idle_timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self._answers and self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
