"""ASGI middleware that checks every request before any other code sees it.

- The Host header must name this machine, which prevents DNS rebinding.
- If a token is set, every request must include it.
- State changes require POST, either from our own pages or from a non-browser client.
- Bodies are limited in size and time while they stream in, and concurrent requests are limited by kind.
- Security headers on every response forbid third-party scripts, frames and requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.exceptions import HTTPException

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 256 << 10
BODY_TOO_LARGE_MESSAGE = f"the body is larger than {MAX_BODY_BYTES >> 10} kB"
CLOSE_CONNECTION_HEADERS = {"connection": "close"}
MAX_URL_LENGTH = 2048
BODY_TIMEOUT_SECONDS = 20.0
MAX_CONCURRENT_REQUESTS = {"read": 200, "change": 8, "watch": 200, "models": 16}
"""limits by kind of request, for a class that opens a page with its style sheet and scripts at the same time"""
MODEL_PATH_PREFIXES = ("/api/attention", "/api/playground/")
"""POST requests that change no state but take long"""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
SESSION_COOKIE = "h2h"
UNIQUE_HEADERS = ("host", "origin", "authorization", "sec-fetch-site", "content-length")
HOST_PATTERN = re.compile(r"(?:\[(?P<address>[0-9a-fA-F:.]+)\]|(?P<name>[\w.-]+))(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
"""name, name:port, [address] or [address]:port"""
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers would send POST requests with an opaque origin
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass
class Rejection:
    """A response sent by the guard itself."""

    status: int
    reason: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AllowedHosts:
    """Accepted Host header values. Host names are vulnerable to DNS rebinding; IP addresses are not."""

    names: frozenset[str]
    allows_any_ip: bool = False

    @classmethod
    def for_address(cls, address: str, *host_names: str) -> AllowedHosts:
        """Return the allowed hosts of a server that listens at an address and has the given host names."""
        listens_everywhere = address in ("0.0.0.0", "::", "")
        names = (*LOOPBACK_HOSTS, address, *host_names)
        return cls(frozenset(name.lower() for name in names if name), listens_everywhere)

    def is_allowed(self, host: str) -> bool:
        """Return whether a Host header names this server, to prevent DNS rebinding."""
        match = HOST_PATTERN.fullmatch(host)
        if match is None or not int(match["port"] or 1):
            return False
        name = (match["address"] or match["name"]).lower()
        return name in self.names or (self.allows_any_ip and _is_ip_address(name))


def is_loopback(address: str) -> bool:
    """Return whether only this machine can connect to a server that listens at an address."""
    if address == "localhost":
        return True
    return _is_ip_address(address) and ipaddress.ip_address(address).is_loopback


def _is_ip_address(name: str) -> bool:
    """Return whether the host name of a request is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class RequestGuard:
    """Middleware that rejects requests or passes them to the application with limits applied."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: AllowedHosts, token: str | None = None) -> None:
        self.app, self.allowed_hosts, self.token = app, allowed_hosts, token
        self.active_requests = dict.fromkeys(MAX_CONCURRENT_REQUESTS, 0)
        self.event_streams: dict[str, list[asyncio.Future[None]]] = {}
        """open event streams by client address, oldest first"""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and forward it to the app, or respond with a rejection."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _read_headers(scope)
        rejection = self._check_request(scope, headers)
        if rejection is not None:
            await _send_rejection(scope, send, rejection)
            return
        await self._forward_request(scope, receive, send)

    def _check_request(self, scope: Scope, headers: dict[str, str]) -> Rejection | None:
        """Return a rejection, or None if the request is allowed."""
        if not self.allowed_hosts.is_allowed(headers.get("host", "")):
            return Rejection(421, "unknown host name; open this server by its address or as localhost")
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > MAX_URL_LENGTH:
            return Rejection(414, "the URL is too long")
        if self.token is not None and (rejection := self._check_token(scope, headers, self.token)):
            return rejection
        if scope["method"] not in SAFE_METHODS and not _is_same_origin(headers):
            return Rejection(403, "cross-site request")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY_BYTES:
            return Rejection(413, BODY_TOO_LARGE_MESSAGE, CLOSE_CONNECTION_HEADERS)
        return None

    def _check_token(self, scope: Scope, headers: dict[str, str], token: str) -> Rejection | None:
        """Return None if the request has a valid token or session cookie, and a rejection otherwise.

        A token in the URL is exchanged for a cookie by a redirect.
        """
        scheme, _, credential = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equals_constant_time(credential.strip(), token):
            return None
        if _equals_constant_time(_read_session_cookie(headers), _derive_session_id(token)):
            return None
        query_token = parse_qs(bytes(scope.get("query_string") or b"").decode("latin-1")).get("token", [""])[0]
        if scope["method"] == "GET" and _equals_constant_time(query_token, token):
            # Redirect to remove the token from the address bar. The cookie holds a hash valid only for this server.
            cookie = f"{SESSION_COOKIE}={_derive_session_id(token)}; HttpOnly; SameSite=Strict; Path=/"
            location = "/" + quote(scope["path"].lstrip("/\\"))
            return Rejection(303, "welcome", {"location": location, "set-cookie": cookie})
        return Rejection(401, "token required: open the link that h2h serve printed")

    async def _forward_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the app, subject to the concurrency limits, and add security headers to the response."""
        kind = _classify_request(scope)
        if kind == "watch" and self.active_requests[kind] >= MAX_CONCURRENT_REQUESTS[kind]:
            await self._close_oldest_stream()
        if self.active_requests[kind] >= MAX_CONCURRENT_REQUESTS[kind]:
            await _send_rejection(scope, send, Rejection(503, "too many requests at once", {"retry-after": "2"}))
            return
        self.active_requests[kind] += 1

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _add_security_headers(message.get("headers", []))}
            await send(message)

        response = self.app(scope, _limit_request_body(receive), send_with_headers)
        try:
            await (self._run_event_stream(scope, response) if kind == "watch" else response)
        finally:
            self.active_requests[kind] -= 1

    async def _run_event_stream(self, scope: Scope, response: Awaitable[None]) -> None:
        """Run an event stream in a task that `_close_oldest_stream` can cancel."""
        client = (scope.get("client") or ("",))[0]
        task = asyncio.ensure_future(response)
        streams = self.event_streams.setdefault(client, [])
        streams.append(task)
        try:
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
        finally:
            task.cancel()
            streams.remove(task)
            if not streams:
                del self.event_streams[client]

    async def _close_oldest_stream(self) -> None:
        """Close the oldest event stream of the client that has the most. A browser reconnects automatically."""
        task = max(self.event_streams.values(), key=len)[0]
        task.cancel()
        await asyncio.wait({task})
        await asyncio.sleep(0)  # `_run_event_stream` decrements the count


def _limit_request_body(receive: Receive) -> Receive:
    """Return an ASGI receive function that limits the size of a request's body and the time that it takes."""
    num_bytes, is_complete = 0, False
    deadline = asyncio.get_running_loop().time() + BODY_TIMEOUT_SECONDS

    async def receive_within_limits() -> Message:
        """Receive the next message; raise HTTPException if the body is too large or too slow."""
        nonlocal num_bytes, is_complete
        if is_complete:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "timeout while receiving the body", CLOSE_CONNECTION_HEADERS) from None
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, BODY_TOO_LARGE_MESSAGE, CLOSE_CONNECTION_HEADERS)
        is_complete = not message.get("more_body", False)
        return message

    return receive_within_limits


def _classify_request(scope: Scope) -> str:
    """Return the kind of a request, which has its own limit in MAX_CONCURRENT_REQUESTS."""
    if scope["method"] not in SAFE_METHODS:
        return "models" if scope["path"].startswith(MODEL_PATH_PREFIXES) else "change"
    return "watch" if scope["path"].endswith("/events") else "read"


def _read_headers(scope: Scope) -> dict[str, str]:
    """Return a request's headers by name. Security-relevant ones that occur more than once are treated as empty."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        headers[key] = "" if key in headers and key in UNIQUE_HEADERS else value.decode("latin-1")
    return headers


def _is_same_origin(headers: dict[str, str]) -> bool:
    """Return whether the request comes from our own pages. Non-browser clients send no origin and are allowed."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is None:
        return True
    return origin in (f"http://{headers['host']}", f"https://{headers['host']}")


def _read_session_cookie(headers: dict[str, str]) -> str:
    """Return the session cookie of a request, by which it is allowed, or an empty string if there is none."""
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(SESSION_COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _derive_session_id(token: str) -> str:
    return hmac.new(token.encode(), b"headtohead session", hashlib.sha256).hexdigest()


def _equals_constant_time(actual: str, expected: str) -> bool:
    """Compare two strings without leaking the position of the first difference through timing."""
    return hmac.compare_digest(actual.encode("utf-8", "replace"), expected.encode())


def _add_security_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Add the security headers that a guarded response does not set itself."""
    set_names = {bytes(name).lower() for name, _ in headers}
    missing_headers = [
        (name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items() if name.encode() not in set_names
    ]
    return [*headers, *missing_headers]


async def _send_rejection(scope: Scope, send: Send, rejection: Rejection) -> None:
    """Reject a request: respond with JSON for API paths and with plain text otherwise."""
    is_api = scope["path"].startswith("/api")
    content_type = "application/json" if is_api else "text/plain; charset=utf-8"
    body = json.dumps({"detail": rejection.reason}).encode() if is_api else rejection.reason.encode() + b"\n"
    header_values = {"content-type": content_type, "content-length": str(len(body)), **rejection.headers}
    headers = [(name.encode(), value.encode("latin-1")) for name, value in header_values.items()]
    await send({"type": "http.response.start", "status": rejection.status, "headers": _add_security_headers(headers)})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
