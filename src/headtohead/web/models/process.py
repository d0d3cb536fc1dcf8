"""The model process takes requests as lines of JSON and answers with lines:

    python -m headtohead.web.models.process SECONDS_OF_A_STEP SECONDS_OF_A_REQUEST

Requests take turns, an answer of each at a time (a token, say), so that a long one keeps nobody waiting. A line
{"stop": 3} ends request 3 at once, also in the middle of a step: a signal raises an exception between two operations.
In the same way no step and no request computes longer than a limit, measured in time of the processor.
"""

from __future__ import annotations

import json
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

NICE = 5
"""trainings go first, but somebody is waiting"""
TOO_LONG = "this takes too long; take a shorter text, fewer tokens, or a smaller model"
Json = dict[str, Any]


class StoppedError(Exception):
    """Nobody waits for this request any more."""


class TooLongError(Exception):
    """A request that computes for too long. Not one of our errors: no other request's words may swallow it."""


@dataclass
class Request:
    """A request under way."""

    number: int
    answers: Iterator[Json]
    spent: float = 0.0


class Turns:
    """Requests, one step of each in turn. No step and no request computes for longer than so many seconds."""

    def __init__(
        self, begin: Callable[[Json], Iterator[Json]], say: Callable[[Json], None], *, step: float, request: float
    ) -> None:
        self.begin, self.say = begin, say
        self.longest_step, self.longest_request = step, request
        self.inbox: SimpleQueue[Json] = SimpleQueue()
        self.under_way: deque[Request] = deque()
        self.stopped: set[int] = set()
        self.now: int | None = None

    def run(self) -> None:
        while True:
            while not self.under_way or not self.inbox.empty():
                asked = self.inbox.get()
                self.under_way.append(Request(asked["request"], self.begin(asked)))
            self._advance(self.under_way.popleft())

    def stop(self, number: int) -> None:
        """From the thread that listens."""
        self.stopped.add(number)
        if self.now == number:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def interrupt(self, *_: object) -> None:
        """A signal came: to the request that is worked on, if it is meant."""
        if self.now is not None and self.now in self.stopped:
            raise StoppedError

    def time_out(self, signal_number: int, frame: FrameType | None) -> None:
        if self.now is not None:
            raise TooLongError

    def _advance(self, request: Request) -> None:
        try:
            answer = None if request.number in self.stopped else self._step(request)
        except StoppedError:
            answer = None
        except Exception as error:  # noqa: BLE001  # whatever it is, it must cost this one request only
            self.say({"request": request.number, "event": "failed", "message": _words(error)})
            return
        if request.number in self.stopped:
            self.stopped.discard(request.number)
            _close(request.answers)
        elif answer is None:
            self.say({"request": request.number, "event": "done"})
        else:
            self.say({**answer, "request": request.number})
            self.under_way.append(request)

    def _step(self, request: Request) -> Json | None:
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, self.longest_step, 1.0)  # again, should the first exception get lost
        self.now = request.number
        try:
            answer = next(request.answers, None)
        finally:
            self.now = None
            signal.setitimer(signal.ITIMER_PROF, 0)
        request.spent += time.process_time() - began
        if answer is not None and request.spent > self.longest_request:
            _close(request.answers)
            raise TooLongError
        return answer


def _words(error: Exception) -> str:
    if isinstance(error, TooLongError):
        return TOO_LONG
    return str(error) if isinstance(error, HeadToHeadError) else f"the model failed: {type(error).__name__}: {error}"


def _close(answers: Iterator[Json]) -> None:
    """Let go of what a request holds."""
    answers.close()  # type: ignore[attr-defined]


def _listen(turns: Turns) -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "stop" in asked:
            turns.stop(asked["stop"])
        else:
            turns.inbox.put(asked)
    os._exit(0)  # the server has gone, or wants nothing more


def main(step: float, request: float) -> None:
    os.nice(NICE)
    line = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever prints must not disturb the line to the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the server's terminal: the server decides
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    from headtohead.web.models.requests import begin

    def say(answer: Json) -> None:
        try:
            line.write(json.dumps(answer) + "\n")
        except BrokenPipeError:
            os._exit(1)

    turns = Turns(begin, say, step=step, request=request)
    signal.signal(signal.SIGUSR1, turns.interrupt)
    signal.signal(signal.SIGPROF, turns.time_out)
    threading.Thread(target=_listen, args=(turns,), daemon=True).start()
    turns.run()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
