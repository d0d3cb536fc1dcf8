"""Child processes that exchange JSON lines with their parent over stdin and stdout.

Every request has an id, which its responses repeat, so that a response to a cancelled request is never mistaken for the
response to the next one. A child exits when its parent closes the channel or dies.

A parent uses `ChildProcess` for a child that works on one request at a time, or `AsyncChildProcess` (asyncio) for a
child that is started on demand and shared by concurrent requests. The child itself uses `ParentChannel`.
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
PYTHON_COMMAND = (sys.executable, "-P")
"""starts Python without the working folder on its module path, because the folder may contain untrusted code"""
SINGLE_THREAD_ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
JsonDict = dict[str, Any]


class ChildExitedError(Exception):
    """The child process exited, or was killed, before it answered."""


class RequestFailedError(Exception):
    """The child process answered with an error message."""


class ParentChannel:
    """The connection of a child process to its parent: requests arrive on stdin, responses are written to stdout."""

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

        def read_messages() -> None:
            for line in sys.stdin:
                on_message(json.loads(line))
            on_close()

        threading.Thread(target=read_messages, daemon=True).start()

    def iter_requests(self) -> Iterator[JsonDict]:
        """Yield the requests of the parent process in order, without those that were cancelled while they waited."""
        inbox: SimpleQueue[JsonDict] = SimpleQueue()
        cancelled_ids: set[int] = set()
        self.listen(lambda message: cancelled_ids.add(message["cancel"]) if "cancel" in message else inbox.put(message))
        while True:
            request = inbox.get()
            if request.get("request") not in cancelled_ids:
                yield request


class ChildProcess:
    """A child process that works on one request at a time, and responds with any number of messages."""

    def __init__(
        self,
        module: str,
        *module_arguments: str,
        environment: Mapping[str, str] | None = None,
        log_path: Path | None = None,
        clean_folder: Path | None = None,
    ) -> None:
        """Start `python -m module`. Its stderr goes to `log_path`, or to the file given to `copy_stderr` later.

        With `clean_folder`, it runs in that folder and inherits nothing from the environment of this process.
        """
        self._request_ids, self._latest_request_id = count(1), 0
        with contextlib.ExitStack() as stack:
            stderr: int | IO[bytes] = subprocess.PIPE if log_path is None else subprocess.DEVNULL
            if log_path not in (None, Path(os.devnull)):
                stderr = stack.enter_context(safe_open.append_to_file(log_path))
            self.process = subprocess.Popen(
                [*PYTHON_COMMAND, "-m", module, *module_arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
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
        """Send a request. From now on, `iter_messages` drops responses to earlier requests."""
        assert self.process.stdin is not None
        self._latest_request_id = next(self._request_ids)
        with contextlib.suppress(BrokenPipeError):  # the child has exited, and `iter_messages` ends
            self.process.stdin.write(json.dumps({**message, "request": self._latest_request_id}).encode() + b"\n")
            self.process.stdin.flush()

    def iter_messages(self) -> Iterator[JsonDict]:
        """Yield the child's messages until it exits, except responses to requests before the latest."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: JsonDict = json.loads(line)
            if message.pop("request", self._latest_request_id) == self._latest_request_id:
                yield message

    def call(self, message: JsonDict, timeout_seconds: float) -> JsonDict:
        """Send a request and return its first response.

        Raise ChildExitedError if the child exits first. A child that takes longer than `timeout_seconds` is killed.
        """
        timed_out = threading.Event()

        def kill_child() -> None:
            timed_out.set()
            self.process.kill()

        timer = threading.Timer(timeout_seconds, kill_child)
        timer.start()
        try:
            self.request(message)
            for response in self.iter_messages():
                return response
        finally:
            timer.cancel()
        reason = f"took longer than {timeout_seconds:g} s" if timed_out.is_set() else self.exit_reason
        raise ChildExitedError(reason)

    def copy_stderr(self, log_path: Path) -> threading.Thread:
        """Append stderr to a file in a background thread and return the thread.

        Write errors are ignored: the run folder may have been removed, or the disk may be full.
        """

        def copy_lines() -> None:
            assert self.process.stderr is not None
            for line in self.process.stderr:
                with contextlib.suppress(OSError, RunFolderError), safe_open.append_to_file(log_path) as log:
                    log.write(line)

        thread = threading.Thread(target=copy_lines, daemon=True)
        thread.start()
        return thread

    def close_input(self) -> None:
        """Close stdin, which tells the child that no more requests follow."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def terminate(self, timeout_seconds: float = TERMINATE_TIMEOUT_SECONDS) -> None:
        """Send SIGTERM; kill the process if it is still running after `timeout_seconds`."""
        self.process.terminate()
        try:
            self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close_pipes(self) -> None:
        """Close stdin, stdout and stderr of the child."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class AsyncChildProcess:
    """A child process shared by concurrent requests: started on demand, restarted after a crash, closed when idle."""

    def __init__(
        self,
        module: str,
        *module_arguments: str,
        idle_seconds: float,
        response_seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the command `python -m module`; the first request starts it.

        The child is closed after `idle_seconds` without requests, and killed if a request waits longer than
        `response_seconds` for its next response.
        """
        self._command = (*PYTHON_COMMAND, "-m", module, *module_arguments)
        self._idle_seconds, self._response_seconds = idle_seconds, response_seconds
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._response_queues: dict[int, asyncio.Queue[JsonDict | None]] = {}
        self._request_ids = count(1)
        self._start_lock = asyncio.Lock()
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, or None if the child is not running."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def num_active_requests(self) -> int:
        """The number of requests whose last response has not arrived."""
        return len(self._response_queues)

    async def stream_responses(self, message: JsonDict) -> AsyncGenerator[JsonDict]:
        """Yield the responses to a request. Closing the generator cancels the request."""
        request_id, response_queue = next(self._request_ids), asyncio.Queue[JsonDict | None]()
        is_active = False
        try:
            await self._ensure_started()
            self._response_queues[request_id], is_active = response_queue, True
            self._send({**message, "request": request_id})
            while True:
                response = await self._receive_response(response_queue)
                is_active = response is not None and response["event"] not in ("done", "failed")
                if response is None:
                    raise ChildExitedError("the process exited before it answered")
                if response["event"] == "failed":
                    raise RequestFailedError(response["message"])
                if response["event"] == "done":
                    return
                yield response
        finally:
            self._response_queues.pop(request_id, None)
            if is_active and self.pid is not None:
                self._send({"cancel": request_id})
            if not self._response_queues:
                self._set_idle_timer()

    async def end(self) -> None:
        """Kill the child and wait until it has exited."""
        self._cancel_idle_timer()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            if self._reader_task is not None:
                await self._reader_task

    async def _receive_response(self, response_queue: asyncio.Queue[JsonDict | None]) -> JsonDict | None:
        """Return the next response to a request, or None if the child exited or timed out.

        A child that times out is killed.
        """
        try:
            async with asyncio.timeout(self._response_seconds):
                return await response_queue.get()
        except TimeoutError:
            await self.end()
            return None

    async def _ensure_started(self) -> None:
        """Start the child unless it is running."""
        self._cancel_idle_timer()
        async with self._start_lock:
            if self._process is not None and self._process.stdin is not None and self._process.stdin.is_closing():
                assert self._reader_task is not None
                await self._reader_task  # the idle child has been told to exit; wait for it
            if self.pid is None:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    limit=MAX_LINE_BYTES,
                    env=self._environment,
                )
                self._reader_task = asyncio.create_task(self._route_responses(self._process))

    def _send(self, message: JsonDict) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):  # the child has exited, and `_route_responses` reports it
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _route_responses(self, process: asyncio.subprocess.Process) -> None:
        """Route each response to its request, dropping those of cancelled ones; put None when the child has exited."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                response = json.loads(line)
                if (response_queue := self._response_queues.get(response.pop("request"))) is not None:
                    response_queue.put_nowait(response)
        except (ValueError, OSError):  # a line above the limit, or not JSON
            process.kill()
        await process.wait()
        if self._process is process:
            self._process = None
            for response_queue in self._response_queues.values():
                response_queue.put_nowait(None)

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _set_idle_timer(self) -> None:
        self._cancel_idle_timer()
        self._idle_timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self._response_queues and self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
