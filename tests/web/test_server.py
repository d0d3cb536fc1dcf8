"""A real server on a free port: half-open connections, huge bodies, and slow or vanishing clients."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from headtohead.errors import RequestError
from headtohead.web import server

from .conftest import send_raw_request, wait_until

Start = Callable[..., tuple[Any, int]]
GET = "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def test_a_port_that_is_taken_is_reported() -> None:
    with server.bind_socket("127.0.0.1", 0) as selected, pytest.raises(RequestError, match="is in use; choose another"):
        server.bind_socket("127.0.0.1", selected.getsockname()[1])
    with pytest.raises(RequestError, match="not an address of this machine"):
        server.bind_socket("no.such.host.invalid", 0)


def test_only_this_machine_is_listened_to_unless_told_otherwise_and_then_a_token_is_asked_for(server: Start) -> None:
    process, port = server()
    assert _listens_at(process) == {"127.0.0.1"}
    assert send_raw_request(port, GET.format("/")).startswith("HTTP/1.1 200")
    process, port = server("0.0.0.0")
    assert _listens_at(process) == {"0.0.0.0"}
    for path in ("/", "/api/experiments"):
        response = send_raw_request(port, GET.format(path))
        assert response.startswith("HTTP/1.1 401") and "Does it help" not in response


def _listens_at(process: Any) -> set[str]:
    net_connections = psutil.Process(process.pid).net_connections("tcp")
    return {item.laddr.ip for item in net_connections if item.status == psutil.CONN_LISTEN}


def test_who_asks_nothing_whole_or_does_not_read_is_let_go(server: Start, runs: Path) -> None:
    (runs / "done" / "report.html").write_text("x" * (40 << 20))
    process, port = server("127.0.0.1", "1")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as half, socket.socket() as deaf:
        half.sendall(b"GET / HTTP/1.1\r\nHost: local")
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(60)
        deaf.connect(("127.0.0.1", port))
        deaf.sendall(GET.format("/experiments/done/report/content").encode())
        assert _closed(half) == b"", "half a request is not waited for"
        wait_until(lambda: not _talks_to(process, deaf.getsockname()[1]), 60)
        count = len(_closed(deaf))
        assert count < 40 << 20, "and neither is one who does not read"
    assert send_raw_request(port, GET.format("/")).startswith("HTTP/1.1 200")


def _closed(line: socket.socket) -> bytes:
    """Return the data received until the other side closes the connection."""
    result = b""
    try:
        while piece := line.recv(1 << 20):
            result += piece
    except ConnectionError:
        pass
    return result


def _talks_to(process: Any, port: int) -> bool:
    return any(
        net_connection.raddr and net_connection.raddr.port == port
        for net_connection in psutil.Process(process.pid).net_connections("tcp")
    )


def test_what_others_do_to_the_server_costs_nobody_anything(server: Start, runs: Path) -> None:
    process, port = server()
    _half_open(port)
    _huge_bodies(process, port)
    with _watchers_that_do_not_read_or_vanish(process, port):
        _spelled_out(port)
        process.send_signal(2)
        assert process.wait(timeout=60) == 0, "Ctrl-C ends it, also while somebody watches"


def _half_open(port: int) -> None:
    """1,000 connections send nothing or incomplete requests, while other requests are answered immediately."""
    held_out = []
    for number in range(1000):
        line = socket.create_connection(("127.0.0.1", port), timeout=10)
        held_out.append(line)
        if number % 2:
            line.sendall(b"GET / HTTP/1.1\r\nHost: local")
    for _ in range(3):
        began = time.monotonic()
        assert send_raw_request(port, GET.format("/")).startswith("HTTP/1.1 200")
        assert time.monotonic() - began < 10
    for line in held_out:
        line.close()


def _huge_bodies(process: Any, port: int) -> None:
    """Send 100 MB with and without a length header: rejected early and not stored."""
    before = psutil.Process(process.pid).memory_info().rss
    head = "POST /api/estimates HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{}\r\n\r\n"
    messages = {}
    for options in ("Content-Length: 104857600", "Transfer-Encoding: chunked"):
        response, messages[options] = b"", 0
        with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
            line.sendall(head.format(options).encode())
            piece = b"x" * 65536 if "Length" in options else b"10000\r\n" + b"x" * 65536 + b"\r\n"
            try:
                while messages[options] < 100 << 20:
                    line.sendall(piece)
                    messages[options] += 65536
            except OSError:
                pass  # it was cut off
            try:
                response = line.recv(65536)
            except OSError:
                response = b""  # what it said was lost with the line
        assert response == b"" or response.startswith(b"HTTP/1.1 413"), response[:100]
        assert messages[options] < 20 << 20, "the line is closed long before the end"
    assert psutil.Process(process.pid).memory_info().rss - before < 30 << 20


def _watchers_that_do_not_read_or_vanish(process: Any, port: int) -> socket.socket:
    """Many clients watch without reading, and some disconnect; the server drops them and continues."""
    lines = []
    for _ in range(40):
        line = socket.create_connection(("127.0.0.1", port), timeout=10)
        line.sendall(b"GET /experiments/stopped/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        lines.append(line)
    assert lines[0].recv(100).startswith(b"HTTP/1.1 200")
    open_now = len(psutil.Process(process.pid).net_connections("tcp"))
    for line in lines[:39]:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # vanish: no farewell
        line.close()
    wait_until(lambda: len(psutil.Process(process.pid).net_connections("tcp")) <= open_now - 39)
    assert send_raw_request(port, GET.format("/experiments/stopped")).startswith("HTTP/1.1 200")
    return lines[39]


def _spelled_out(port: int) -> None:
    """Send path traversals that a client library would normalize."""
    ways = (
        "/experiments/../../etc/passwd",
        "/static/../guard.py",
        "/../../../etc/passwd",
        "//etc/passwd",
        "/static/./..",
    )
    for way in ways:
        response = send_raw_request(port, GET.format(way))
        assert response.split(" ")[1] in ("400", "404"), (way, response[:200])
    assert (
        send_raw_request(port, "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").split(" ")[1]
        == "421"
    )
    assert send_raw_request(port, "GET / HTTP/1.0\r\n\r\n").split(" ")[1] == "421"
    assert send_raw_request(port, "nonsense\r\n\r\n").split(" ")[1] == "400"
    assert send_raw_request(port, GET.format("/" + "x" * 10_000)).split(" ")[1] == "414"
