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
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BODY = 256 << 10
TOO_LARGE = f"the body is larger than {MOST_BODY >> 10} kB"
CLOSE = {"connection": "close"}
MOST_ADDRESS = 2048
BODY_SECONDS = 20.0
MOST_AT_ONCE = {"read": 200, "change": 8, "watch": 200, "models": 16}
"""of each kind; a class that opens a page at the same moment asks for its style and scripts at the same moment too"""
MODELS = ("/api/attention", "/api/playground/")
"""these change nothing, but they ask long questions and take long to be answered"""
SAFE = ("GET", "HEAD", "OPTIONS")
COOKIE = "h2h"
LOOPBACK = ("localhost", "127.0.0.1", "::1")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # without any, a browser would not say where its own POST comes from
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass
class Refusal:
    """An answer that is given here and goes no further."""

    status: int
    reason: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Hosts:
    """The names by which this server may be called. An address is never another site's name; a word may be."""

    names: frozenset[str]
    any_address: bool = False

    @classmethod
    def of(cls, address: str, *more: str) -> Hosts:
        """For a server that listens at this address."""
        everywhere = address in ("0.0.0.0", "::", "")
        return cls(frozenset(name.lower() for name in (*LOOPBACK, address, *more) if name), everywhere)

    def allow(self, host: str) -> bool:
        name = urlsplit(f"//{host}").hostname if _is_authority(host) else None
        if name is None:
            return False
        return name in self.names or (self.any_address and _is_address(name))


def is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    return _is_address(address) and ipaddress.ip_address(address).is_loopback


def _is_address(name: str) -> bool:
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


class Guard:
    """Stands before the application."""

    def __init__(self, app: App, *, hosts: Hosts, token: str | None = None) -> None:
        self.app, self.hosts, self.token = app, hosts, token
        self.at_once = dict.fromkeys(MOST_AT_ONCE, 0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _headers(scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(scope, send, refusal)
            return
        await self._pass(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> Refusal | None:
        """Why this goes no further, if so."""
        if not self.hosts.allow(headers.get("host", "")):
            return Refusal(421, "this server does not go by that name; open it by its address or as localhost")
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > MOST_ADDRESS:
            return Refusal(414, "the address is too long")
        if self.token is not None and (refusal := self._without_token(scope, headers, self.token)):
            return refusal
        if scope["method"] not in SAFE and not _is_own(headers):
            return Refusal(403, "asked for by another site")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > MOST_BODY:
            return Refusal(413, TOO_LARGE, CLOSE)
        return None

    def _without_token(self, scope: Scope, headers: dict[str, str], token: str) -> Refusal | None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), token):
            return None
        if _same(_cookie(headers), _session(token)):
            return None
        asked = parse_qs(bytes(scope.get("query_string") or b"").decode("latin-1")).get("token", [""])[0]
        if scope["method"] == "GET" and _same(asked, token):
            # The token leaves the address bar at once; the cookie holds a hash that is worth something only here.
            cookie = f"{COOKIE}={_session(token)}; HttpOnly; SameSite=Strict; Path=/"
            there = "/" + quote(scope["path"].lstrip("/\\"))
            return Refusal(303, "welcome", {"location": there, "set-cookie": cookie})
        return Refusal(401, "this server asks for a token: open the link that h2h serve printed")

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = _kind(scope)
        if self.at_once[kind] >= MOST_AT_ONCE[kind]:
            await _answer(scope, send, Refusal(503, "too many requests at once", {"retry-after": "2"}))
            return
        self.at_once[kind] += 1

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with_ours(message.get("headers", []))}
            await send(message)

        try:
            await self.app(scope, _limited(receive), sending)
        finally:
            self.at_once[kind] -= 1


def _limited(receive: Receive) -> Receive:
    """The same body, with an end to its size and to the wait for it."""
    seen, done = 0, False
    until = asyncio.get_running_loop().time() + BODY_SECONDS

    async def limited() -> Message:
        nonlocal seen, done
        if done:
            return await receive()
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the body took too long", CLOSE) from None
        seen += len(message.get("body", b""))
        if seen > MOST_BODY:
            raise HTTPException(413, TOO_LARGE, CLOSE)
        done = not message.get("more_body", False)
        return message

    return limited


def _kind(scope: Scope) -> str:
    if scope["method"] not in SAFE:
        return "models" if scope["path"].startswith(MODELS) else "change"
    return "watch" if scope["path"].endswith("/events") else "read"


def _headers(scope: Scope) -> dict[str, str]:
    """By name; a header that comes twice and may not is no header."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        found[key] = "" if key in found and key in ("host", "origin", "authorization") else value.decode("latin-1")
    return found


def _is_own(headers: dict[str, str]) -> bool:
    """A browser says where a request comes from; what is no browser says nothing, and is no foreign site either."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is None:
        return True
    return origin in (f"http://{headers['host']}", f"https://{headers['host']}")


def _cookie(headers: dict[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _session(token: str) -> str:
    return hmac.new(token.encode(), b"headtohead session", hashlib.sha256).hexdigest()


def _same(given: str, wanted: str) -> bool:
    """In a time that does not tell how much of it was right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _with_ours(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    there = {bytes(name).lower() for name, _ in headers}
    ours = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in there]
    return [*headers, *ours]


async def _answer(scope: Scope, send: Send, refusal: Refusal) -> None:
    is_api = scope["path"].startswith("/api")
    kind = "application/json" if is_api else "text/plain; charset=utf-8"
    body = json.dumps({"detail": refusal.reason}).encode() if is_api else refusal.reason.encode() + b"\n"
    given = {"content-type": kind, "content-length": str(len(body)), **refusal.headers}
    headers = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": _with_ours(headers)})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
