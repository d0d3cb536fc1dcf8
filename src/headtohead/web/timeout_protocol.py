"""HTTP/1.1 with timeouts for slow and idle clients.

uvicorn waits indefinitely for request headers and for clients that do not read. Here, idle connections and those with
incomplete requests are closed after a timeout, and beyond a limit the oldest is closed first, so that half-open
connections cannot exhaust the server.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_IDLE_CONNECTIONS = 128
HEADER_TIMEOUT_SECONDS = 10.0
WRITE_TIMEOUT_SECONDS = 20.0
"""how long a client may leave sent data unread"""


class TimeoutProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with header, idle and write timeouts."""

    idle_connections: dict[TimeoutProtocol, None] = {}  # noqa: RUF012  # shared by all connections, oldest first

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_header_timeout()

    def data_received(self, data: bytes) -> None:
        """Process incoming data, and start or stop the timeout for request headers."""
        super().data_received(data)
        if self._is_responding():
            self._cancel_header_timeout()
        elif self._header_timer is None:
            self._start_header_timeout()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_responding():
            self._start_header_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_header_timeout()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self._write_timer or self.loop.call_later(WRITE_TIMEOUT_SECONDS, self._abort_connection)

    def resume_writing(self) -> None:
        """Cancel the write timeout: the client is reading again."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.flow is not None:
            super().resume_writing()

    def _is_responding(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _start_header_timeout(self) -> None:
        """Start an idle connection's timeout, and close the oldest connection if there are too many."""
        self._cancel_header_timeout()
        self.idle_connections[self] = None
        self._header_timer = self.loop.call_later(HEADER_TIMEOUT_SECONDS, self._abort_connection)
        if len(self.idle_connections) > MAX_IDLE_CONNECTIONS:
            next(iter(self.idle_connections))._abort_connection()

    def _cancel_header_timeout(self) -> None:
        self.idle_connections.pop(self, None)
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _abort_connection(self) -> None:
        self._cancel_header_timeout()
        self.transport.abort()
