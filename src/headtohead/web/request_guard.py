"""Who may ask what. In front of every page, before anything of ours has looked at the request:

- the Host must be a name of this machine, so that a foreign site whose name leads here (DNS rebinding) gets nothing;
- where a token is set, nobody gets anything without it;
- what changes something is asked by POST, and from our own pages or from no page at all;
- a body is cut off at a limit while it streams in, and no client can hold more than its share of requests at once;
- every answer carries headers that forbid foreign scripts, frames and requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

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
"""of each kind; a class that opens a page at the same moment asks for its style and scripts at the same moment too"""
MODEL_PATH_PREFIXES = ("/api/attention", "/api/playground/")
"""these change nothing, but they ask long questions and take long to be answered"""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
SESSION_COOKIE = "h2h"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # without any, a browser would not say where its own POST comes from
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass
class Rejection:
    """An answer that is given here and goes no further."""

    status: int
    reason: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AllowedHosts:
    """The names by which this server may be called. An address is never another site's name; a word may be."""

    names: frozenset[str]
    allows_any_ip: bool = False

    @classmethod
    def of(cls, address: str, *more: str) -> AllowedHosts:
        """For a server that listens at this address."""
        everywhere = address in ("0.0.0.0", "::", "")
        return cls(frozenset(name.lower() for name in (*LOOPBACK_HOSTS, address, *more) if name), everywhere)

    def is_allowed(self, host: str) -> bool:
        name = urlsplit(f"//{host}").hostname if _is_authority(host) else None
        if name is None:
            return False
        return name in self.names or (self.allows_any_ip and _is_ip_address(name))


def is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    return _is_ip_address(address) and ipaddress.ip_address(address).is_loopback


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_authority(host: str) -> bool:
    """name, name:port, [address]:port, and nothing else."""
    if not host or any(c in host for c in "/@?#\\ \t,"):
        return False
    try:
        split = urlsplit(f"//{host}")
        return bool(split.hostname) and (split.port is None or split.port > 0)
    except ValueError:
        return False


class RequestGuard:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: AllowedHosts, token: str | None = None) -> None:
        self.app, self.allowed_hosts, self.token = app, allowed_hosts, token
        self.active_requests = dict.fromkeys(MAX_CONCURRENT_REQUESTS, 0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _read_headers(scope)
        refusal = self._check_request(scope, headers)
        if refusal is not None:
            await _send_rejection(scope, send, refusal)
            return
        await self._pass(scope, receive, send)

    def _check_request(self, scope: Scope, headers: dict[str, str]) -> Rejection | None:
        """Why this goes no further, if so."""
        if not self.allowed_hosts.is_allowed(headers.get("host", "")):
            return Rejection(421, "this server does not go by that name; open it by its address or as localhost")
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > MAX_URL_LENGTH:
            return Rejection(414, "the address is too long")
        if self.token is not None and (refusal := self._check_token(scope, headers, self.token)):
            return refusal
        if scope["method"] not in SAFE_METHODS and not _is_same_origin(headers):
            return Rejection(403, "asked for by another site")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY_BYTES:
            return Rejection(413, BODY_TOO_LARGE_MESSAGE, CLOSE_CONNECTION_HEADERS)
        return None

    def _check_token(self, scope: Scope, headers: dict[str, str], token: str) -> Rejection | None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _equals_constant_time(given.strip(), token):
            return None
        if _equals_constant_time(_read_session_cookie(headers), _derive_session_id(token)):
            return None
        asked = parse_qs(bytes(scope.get("query_string") or b"").decode("latin-1")).get("token", [""])[0]
        if scope["method"] == "GET" and _equals_constant_time(asked, token):
            # The token leaves the address bar at once; the cookie holds a hash that is worth something only here.
            cookie = f"{SESSION_COOKIE}={_derive_session_id(token)}; HttpOnly; SameSite=Strict; Path=/"
            there = "/" + quote(scope["path"].lstrip("/\\"))
            return Rejection(303, "welcome", {"location": there, "set-cookie": cookie})
        return Rejection(401, "this server asks for a token: open the link that h2h serve printed")

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = _classify_request(scope)
        if self.active_requests[kind] >= MAX_CONCURRENT_REQUESTS[kind]:
            await _send_rejection(scope, send, Rejection(503, "too many requests at once", {"retry-after": "2"}))
            return
        self.active_requests[kind] += 1

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _add_security_headers(message.get("headers", []))}
            await send(message)

        try:
            await self.app(scope, _limit_body(receive), sending)
        finally:
            self.active_requests[kind] -= 1


def _limit_body(receive: Receive) -> Receive:
    """The same body, with an end to its size and to the wait for it."""
    seen, done = 0, False
    until = asyncio.get_running_loop().time() + BODY_TIMEOUT_SECONDS

    async def limited() -> Message:
        nonlocal seen, done
        if done:
            return await receive()
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the body took too long", CLOSE_CONNECTION_HEADERS) from None
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            raise HTTPException(413, BODY_TOO_LARGE_MESSAGE, CLOSE_CONNECTION_HEADERS)
        done = not message.get("more_body", False)
        return message

    return limited


def _classify_request(scope: Scope) -> str:
    if scope["method"] not in SAFE_METHODS:
        return "models" if scope["path"].startswith(MODEL_PATH_PREFIXES) else "change"
    return "watch" if scope["path"].endswith("/events") else "read"


def _read_headers(scope: Scope) -> dict[str, str]:
    """By name; a header that comes twice and may not is no header."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        found[key] = "" if key in found and key in ("host", "origin", "authorization") else value.decode("latin-1")
    return found


def _is_same_origin(headers: dict[str, str]) -> bool:
    """A browser says where a request comes from; what is no browser says nothing, and is no foreign site either."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is None:
        return True
    return origin in (f"http://{headers['host']}", f"https://{headers['host']}")


def _read_session_cookie(headers: dict[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(SESSION_COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _derive_session_id(token: str) -> str:
    return hmac.new(token.encode(), b"headtohead session", hashlib.sha256).hexdigest()


def _equals_constant_time(given: str, expected: str) -> bool:
    """In a time that does not tell how much of it was right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _add_security_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    there = {bytes(name).lower() for name, _ in headers}
    ours = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items() if name.encode() not in there]
    return [*headers, *ours]


async def _send_rejection(scope: Scope, send: Send, rejection: Rejection) -> None:
    is_api = scope["path"].startswith("/api")
    kind = "application/json" if is_api else "text/plain; charset=utf-8"
    body = json.dumps({"detail": rejection.reason}).encode() if is_api else rejection.reason.encode() + b"\n"
    given = {"content-type": kind, "content-length": str(len(body)), **rejection.headers}
    headers = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
    await send({"type": "http.response.start", "status": rejection.status, "headers": _add_security_headers(headers)})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
