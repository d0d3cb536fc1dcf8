"""The model process reads requests as JSON lines and writes responses as JSON lines:

    python -m headtohead.web.models.process STEP_LIMIT_SECONDS REQUEST_LIMIT_SECONDS

Requests are scheduled round-robin, one response (such as a token) at a time. The line {"cancel": 3} cancels request 3
immediately, even during a step, through a signal that raises an exception. Limits on the CPU time of steps and requests
use the same mechanism.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType
from typing import Any

from headtohead.child_process import ParentChannel
from headtohead.errors import HeadToHeadError

NICENESS = 5
"""below training, above the render worker"""
COMPUTE_LIMIT_MESSAGE = "the computation exceeds the time limit; use a shorter text, fewer tokens or a smaller model"
JsonDict = dict[str, Any]


class RequestCancelledError(Exception):
    """The client is no longer waiting for this request."""


class ComputeLimitError(Exception):
    """A request exceeded its CPU-time limit. Not a HeadToHeadError, so that handlers do not catch it."""


@dataclass
class ActiveRequest:
    """A request in progress."""

    request_id: int
    responses: Iterator[JsonDict]
    cpu_seconds: float = 0.0


class RequestScheduler:
    """Runs one step of each request in turn and limits the CPU time per step and per request."""

    def __init__(
        self,
        handle_request: Callable[[JsonDict], Iterator[JsonDict]],
        send_response: Callable[[JsonDict], None],
        *,
        step_limit_seconds: float,
        request_limit_seconds: float,
    ) -> None:
        """Prepare to process requests in turn, with limits on the CPU time of each step and each request."""
        self.handle_request, self.send_response = handle_request, send_response
        self.step_limit_seconds, self.request_limit_seconds = step_limit_seconds, request_limit_seconds
        self.incoming_requests: SimpleQueue[JsonDict] = SimpleQueue()
        self.active_requests: deque[ActiveRequest] = deque()
        self.cancelled_request_ids: set[int] = set()
        self.current_request_id: int | None = None

    def run(self) -> None:
        """Process requests in turn, one response at a time, so that a long request does not block the others."""
        while True:
            while not self.active_requests or not self.incoming_requests.empty():
                message = self.incoming_requests.get()
                self.active_requests.append(ActiveRequest(message["request"], self.handle_request(message)))
            self._advance_request(self.active_requests.popleft())

    def cancel_request(self, request_id: int) -> None:
        """Cancel a request. Called from the listener thread."""
        self.cancelled_request_ids.add(request_id)
        if self.current_request_id == request_id:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def on_cancel_signal(self, *_: object) -> None:
        """Raise an exception inside the running request if it has been cancelled."""
        if self.current_request_id is not None and self.current_request_id in self.cancelled_request_ids:
            raise RequestCancelledError

    def on_cpu_timer(self, signal_number: int, frame: FrameType | None) -> None:
        """Raise an exception inside the running request: its step has exceeded the CPU-time limit."""
        if self.current_request_id is not None:
            raise ComputeLimitError

    def _advance_request(self, request: ActiveRequest) -> None:
        """Compute and send a request's next response; queue the request again unless it is complete."""
        try:
            response = (
                None if request.request_id in self.cancelled_request_ids else self._compute_next_response(request)
            )
        except RequestCancelledError:
            response = None
        except Exception as error:  # noqa: BLE001  # an error must affect only its own request
            self.send_response(
                {"request": request.request_id, "event": "failed", "message": _format_request_error(error)}
            )
            return
        if request.request_id in self.cancelled_request_ids:
            self.cancelled_request_ids.discard(request.request_id)
            _close_responses(request.responses)
        elif response is None:
            self.send_response({"request": request.request_id, "event": "done"})
        else:
            self.send_response({**response, "request": request.request_id})
            self.active_requests.append(request)

    def _compute_next_response(self, request: ActiveRequest) -> JsonDict | None:
        """Compute the next response within the CPU-time limits; return None once there are no more."""
        start = time.process_time()
        signal.setitimer(
            signal.ITIMER_PROF, self.step_limit_seconds, 1.0
        )  # repeats in case the first exception is lost
        self.current_request_id = request.request_id
        try:
            response = next(request.responses, None)
        finally:
            self.current_request_id = None
            signal.setitimer(signal.ITIMER_PROF, 0)
        request.cpu_seconds += time.process_time() - start
        if response is not None and request.cpu_seconds > self.request_limit_seconds:
            _close_responses(request.responses)
            raise ComputeLimitError
        return response


def _format_request_error(error: Exception) -> str:
    """Return the message that the browser shows for a failed request."""
    if isinstance(error, ComputeLimitError):
        return COMPUTE_LIMIT_MESSAGE
    return str(error) if isinstance(error, HeadToHeadError) else f"the model failed: {type(error).__name__}: {error}"


def _close_responses(responses: Iterator[JsonDict]) -> None:
    """Release the models held by a request."""
    responses.close()  # type: ignore[attr-defined]


def main(step_limit_seconds: float, request_limit_seconds: float) -> None:
    """Answer requests in the model process until the server closes the channel."""
    os.nice(NICENESS)
    channel = ParentChannel()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the server's terminal is handled by the server
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    from headtohead.web.models.request_handlers import dispatch_request

    scheduler = RequestScheduler(
        dispatch_request,
        channel.send,
        step_limit_seconds=step_limit_seconds,
        request_limit_seconds=request_limit_seconds,
    )
    signal.signal(signal.SIGUSR1, scheduler.on_cancel_signal)
    signal.signal(signal.SIGPROF, scheduler.on_cpu_timer)
    channel.listen(
        lambda message: (
            scheduler.cancel_request(message["cancel"])
            if "cancel" in message
            else scheduler.incoming_requests.put(message)
        )
    )
    scheduler.run()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
