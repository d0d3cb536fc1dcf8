"""The model process takes requests as lines of JSON and answers with lines:

    python -m headtohead.web.models.process SECONDS_OF_A_STEP SECONDS_OF_A_REQUEST

Requests take turns, an answer of each at a time (a token, say), so that a long one keeps nobody waiting. A
line {"cancel": 3} ends request 3 at once, also in the middle of a step: a signal raises an exception between two
operations. In the same way no step and no request computes longer than a limit, measured in time of the processor.
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

from headtohead.errors import HeadToHeadError
from headtohead.json_channel import ParentChannel

NICENESS = 5
"""trainings go first, but somebody is waiting"""
COMPUTE_LIMIT_MESSAGE = "this takes too long; take a shorter text, fewer tokens, or a smaller model"
JsonDict = dict[str, Any]


class RequestCancelledError(Exception):
    """Nobody waits for this request any more."""


class ComputeLimitError(Exception):
    """A request that computes for too long. Not one of our errors: no other request's words may swallow it."""


@dataclass
class ActiveRequest:
    """A request under way."""

    number: int
    responses: Iterator[JsonDict]
    cpu_seconds: float = 0.0


class RequestScheduler:
    """Requests, one step of each in turn. No step and no request computes for longer than so many seconds."""

    def __init__(
        self,
        handle_request: Callable[[JsonDict], Iterator[JsonDict]],
        send_response: Callable[[JsonDict], None],
        *,
        step_limit_seconds: float,
        request_limit_seconds: float,
    ) -> None:
        self.begin, self.say = handle_request, send_response
        self.step_limit_seconds, self.request_limit_seconds = step_limit_seconds, request_limit_seconds
        self.inbox: SimpleQueue[JsonDict] = SimpleQueue()
        self.under_way: deque[ActiveRequest] = deque()
        self.stopped: set[int] = set()
        self.now: int | None = None

    def run(self) -> None:
        while True:
            while not self.under_way or not self.inbox.empty():
                asked = self.inbox.get()
                self.under_way.append(ActiveRequest(asked["request"], self.begin(asked)))
            self._advance_request(self.under_way.popleft())

    def stop(self, request_id: int) -> None:
        """From the thread that listens."""
        self.stopped.add(request_id)
        if self.now == request_id:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def on_cancel_signal(self, *_: object) -> None:
        """A signal came: to the request that is worked on, if it is meant."""
        if self.now is not None and self.now in self.stopped:
            raise RequestCancelledError

    def on_cpu_timer(self, signal_number: int, frame: FrameType | None) -> None:
        if self.now is not None:
            raise ComputeLimitError

    def _advance_request(self, request: ActiveRequest) -> None:
        try:
            answer = None if request.number in self.stopped else self._step(request)
        except RequestCancelledError:
            answer = None
        except Exception as error:  # noqa: BLE001  # whatever it is, it must cost this one request only
            self.say({"request": request.number, "event": "failed", "message": _format_error(error)})
            return
        if request.number in self.stopped:
            self.stopped.discard(request.number)
            _close_responses(request.responses)
        elif answer is None:
            self.say({"request": request.number, "event": "done"})
        else:
            self.say({**answer, "request": request.number})
            self.under_way.append(request)

    def _step(self, request: ActiveRequest) -> JsonDict | None:
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, self.step_limit_seconds, 1.0)  # again, should the first exception get lost
        self.now = request.number
        try:
            answer = next(request.responses, None)
        finally:
            self.now = None
            signal.setitimer(signal.ITIMER_PROF, 0)
        request.cpu_seconds += time.process_time() - began
        if answer is not None and request.cpu_seconds > self.request_limit_seconds:
            _close_responses(request.responses)
            raise ComputeLimitError
        return answer


def _format_error(error: Exception) -> str:
    if isinstance(error, ComputeLimitError):
        return COMPUTE_LIMIT_MESSAGE
    return str(error) if isinstance(error, HeadToHeadError) else f"the model failed: {type(error).__name__}: {error}"


def _close_responses(responses: Iterator[JsonDict]) -> None:
    """Let go of what a request holds."""
    responses.close()  # type: ignore[attr-defined]


def main(step_limit_seconds: float, request_limit_seconds: float) -> None:
    """Answer requests until the server closes the channel."""
    os.nice(NICENESS)
    channel = ParentChannel()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the server's terminal is handled by the server
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    from headtohead.web.models.requests import dispatch_request

    scheduler = RequestScheduler(
        dispatch_request,
        channel.send,
        step_limit_seconds=step_limit_seconds,
        request_limit_seconds=request_limit_seconds,
    )
    signal.signal(signal.SIGUSR1, scheduler.on_cancel_signal)
    signal.signal(signal.SIGPROF, scheduler.on_cpu_timer)
    channel.listen(
        lambda message: scheduler.stop(message["cancel"]) if "cancel" in message else scheduler.inbox.put(message)
    )
    scheduler.run()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
