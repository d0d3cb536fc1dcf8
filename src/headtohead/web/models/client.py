"""The server's connection to the model process.

The process is started on demand, restarted if it dies, and exits when idle. A request is cancelled when its client
disconnects. A few requests run concurrently, further ones are queued in order, and beyond a limit they are rejected.
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

from headtohead.child_process import SINGLE_THREAD_ENVIRONMENT, AsyncChildProcess, ChildExitedError, RequestFailedError
from headtohead.errors import RequestError

MAX_CONCURRENT_REQUESTS = 4
MAX_QUEUED_REQUESTS = 12
DISCONNECT_POLL_SECONDS = 0.3
"""seconds between checks whether the client has disconnected"""
PROCESS_EXITED_MESSAGE = "the model process has exited; try again"
JsonDict = dict[str, Any]


@dataclass(frozen=True)
class ProcessTimeouts:
    """Time limits for the model process, in seconds."""

    idle_seconds: float = 600.0
    """idle time after which the process exits"""
    step_cpu_seconds: float = 60.0
    """CPU time for one step, such as a token"""
    request_cpu_seconds: float = 180.0
    """CPU time for one request"""
    unresponsive_seconds: float = 300.0
    """time without a response after which the process is considered dead"""


class ModelProcessClient(AsyncChildProcess):
    """The model process, with a bounded number of active and queued requests."""

    def __init__(self, timeouts: ProcessTimeouts | None = None) -> None:
        """Prepare to start the model process at the first request."""
        self.timeouts = timeouts or ProcessTimeouts()
        super().__init__(
            "headtohead.web.models.process",
            str(self.timeouts.step_cpu_seconds),
            str(self.timeouts.request_cpu_seconds),
            idle_seconds=self.timeouts.idle_seconds,
            response_seconds=self.timeouts.unresponsive_seconds,
            environment={**SINGLE_THREAD_ENVIRONMENT, "TOKENIZERS_PARALLELISM": "false"},
        )
        self._concurrency_limit = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        self._num_queued = 0

    async def submit(self, message: JsonDict) -> AsyncGenerator[JsonDict]:
        """Yield the responses to a request. Closing the generator cancels the computation."""
        if self._num_queued >= MAX_QUEUED_REQUESTS:
            raise HTTPException(503, "too many requests to the models at once", {"retry-after": "5"})
        self._num_queued += 1
        try:
            await self._concurrency_limit.acquire()
        finally:
            self._num_queued -= 1
        try:
            async with aclosing(self.stream_responses(message)) as responses:
                async for response in responses:
                    yield response
        except RequestFailedError as error:
            raise RequestError(str(error)) from None
        except ChildExitedError:
            raise HTTPException(503, PROCESS_EXITED_MESSAGE, {"retry-after": "1"}) from None
        finally:
            self._concurrency_limit.release()

    async def call(self, request: Request, message: JsonDict) -> JsonDict:
        """Return the only response to a request, unless the client disconnects first."""
        async with aclosing(self.submit(message)) as responses:
            return await await_model_response(request, anext(responses))


async def await_model_response(request: Request, response: Any) -> JsonDict:
    """Await the first response of the model process; cancel the request if the browser disconnects."""
    task = asyncio.ensure_future(response)
    try:
        while True:
            await asyncio.wait({task}, timeout=DISCONNECT_POLL_SECONDS)
            if task.done():
                result: JsonDict = task.result()
                return result
            if await request.is_disconnected():
                raise HTTPException(499, "client disconnected")
    finally:
        task.cancel()
        with contextlib.suppress(BaseException):
            await task
