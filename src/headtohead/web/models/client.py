"""The server's side of the model process: a child with torch that is started when it is needed and again when it has
died, sent home when nothing was asked for a while, and told to stop as soon as nobody waits for its answer.

A few requests are worked on at once, in turns; the next ones wait in the order in which they came, and beyond a limit
they are turned away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from headtohead.errors import RequestError
from headtohead.json_channel import SINGLE_THREAD_ENVIRONMENT, ChildExitedError, RequestChannel, RequestFailedError

MAX_CONCURRENT_REQUESTS = 4
MAX_QUEUED_REQUESTS = 12
DISCONNECT_POLL_SECONDS = 0.3
"""seconds between looks at whether a client is still there"""
PROCESS_EXITED_MESSAGE = "the process that holds the models has ended; ask again"
JsonDict = dict[str, Any]


@dataclass(frozen=True)
class ProcessTimeouts:
    """How long is waited for what, in seconds."""

    idle: float = 600.0
    """without a question: then the process is sent home"""
    step: float = 60.0
    """of computing for one step, a token for instance"""
    request_cpu_seconds: float = 180.0
    """of computing for one request"""
    unresponsive_seconds: float = 300.0
    """without a word while there is work: then the process is taken for dead"""


class ModelProcessClient(RequestChannel):
    """The model process, with a bounded number of active and queued requests."""

    def __init__(self, timeouts: ProcessTimeouts | None = None) -> None:
        self.timeouts = timeouts or ProcessTimeouts()
        super().__init__(
            "headtohead.web.models.process",
            str(self.timeouts.step),
            str(self.timeouts.request_cpu_seconds),
            idle_seconds=self.timeouts.idle,
            response_seconds=self.timeouts.unresponsive_seconds,
            environment={**SINGLE_THREAD_ENVIRONMENT, "TOKENIZERS_PARALLELISM": "false"},
        )
        self._concurrency_limit = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        self._num_queued = 0

    async def ask(self, message: JsonDict) -> AsyncGenerator[JsonDict]:
        """Yield the answers to a request. Closing the generator cancels the computation."""
        if self._num_queued >= MAX_QUEUED_REQUESTS:
            raise HTTPException(503, "too many requests to the models at once", {"retry-after": "5"})
        self._num_queued += 1
        try:
            await self._concurrency_limit.acquire()
        finally:
            self._num_queued -= 1
        try:
            async with aclosing(self.stream(message)) as answers:
                async for answer in answers:
                    yield answer
        except RequestFailedError as error:
            raise RequestError(str(error)) from None
        except ChildExitedError:
            raise HTTPException(503, PROCESS_EXITED_MESSAGE, {"retry-after": "1"}) from None
        finally:
            self._concurrency_limit.release()

    async def answer(self, request: Request, message: JsonDict) -> JsonDict:
        """Return the only answer to a request, unless the client disconnects first."""
        async with aclosing(self.ask(message)) as answers:
            return await await_unless_disconnected(request, anext(answers))


async def await_unless_disconnected(request: Request, awaitable: Any) -> JsonDict:
    """What is waited for, while the client waits too."""
    task = asyncio.ensure_future(awaitable)
    try:
        while True:
            await asyncio.wait({task}, timeout=DISCONNECT_POLL_SECONDS)
            if task.done():
                found: JsonDict = task.result()
                return found
            if await request.is_disconnected():
                raise HTTPException(499, "the client has gone")
    finally:
        task.cancel()
        with contextlib.suppress(BaseException):
            await task


def get_model_client(request: Request) -> ModelProcessClient:
    found: ModelProcessClient = request.app.state.models
    return found
