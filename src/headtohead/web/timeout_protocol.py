"""Clients that are slow or silent must not cost the others anything.

uvicorn waits for the headers of a request, and for a client that does not read, as long as it takes. Here a connection
that has asked nothing whole, or has been answered and is idle, waits in a line of limited length: it is closed after a
while, and a new one pushes out the oldest. So a thousand half-open connections keep nobody out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_IDLE_CONNECTIONS = 128
HEADER_TIMEOUT_SECONDS = 10.0
WRITE_TIMEOUT_SECONDS = 20.0
"""how long a client may leave what was sent to it unread"""


class TimeoutProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with an end to its patience."""

    waiting: dict[TimeoutProtocol, None] = {}  # noqa: RUF012  # one line for all connections, the oldest first

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_responding():
            self._cancel_header_timeout()
        elif self._header_timer is None:
            self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_responding():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_header_timeout()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self._write_timer or self.loop.call_later(WRITE_TIMEOUT_SECONDS, self._abort_connection)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.flow is not None:
            super().resume_writing()

    def _is_responding(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _wait(self) -> None:
        """Stand at the end of the line; whoever stands at its head for too long, or has too many behind him, goes."""
        self._cancel_header_timeout()
        self.waiting[self] = None
        self._header_timer = self.loop.call_later(HEADER_TIMEOUT_SECONDS, self._abort_connection)
        if len(self.waiting) > MAX_IDLE_CONNECTIONS:
            next(iter(self.waiting))._abort_connection()

    def _cancel_header_timeout(self) -> None:
        self.waiting.pop(self, None)
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _abort_connection(self) -> None:
        self._cancel_header_timeout()
        self.transport.abort()
