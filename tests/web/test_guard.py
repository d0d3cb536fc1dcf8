"""The request guard: every rule of the documented security model."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from headtohead.errors import RequestError
from headtohead.web import request_guard, server, training_process
from headtohead.web.app import create_app
from headtohead.web.request_guard import AllowedHosts

from .conftest import HOSTILE

TOKEN = "correct-horse-battery"


def open_client(runs: Path, **options: Any) -> TestClient:
    return TestClient(create_app(runs, **options), base_url="http://127.0.0.1:8000", follow_redirects=False)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.168.1.7",
        "",
        "a@localhost",
        "localhost/x",
        "127.0.0.1:port",
        "[::1",
        "localhost, evil.example",
    ],
)
def test_a_foreign_name_gets_nothing(client: TestClient, host: str) -> None:
    response = client.get("/", headers={"host": host})
    assert response.status_code == 421
    assert "Does it help" not in response.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1", "[::1]:8000"])
def test_the_names_of_this_machine_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


def test_bound_to_every_address_an_address_is_answered_and_a_name_is_not() -> None:
    hosts = AllowedHosts.for_address("0.0.0.0", "MyMachine")
    assert hosts.is_allowed("10.0.0.7:8000")
    assert hosts.is_allowed("mymachine")
    assert not hosts.is_allowed("evil.example")
    assert not AllowedHosts.for_address("10.0.0.7").is_allowed("10.0.0.8")


def test_a_token_is_made_as_soon_as_the_address_is_not_the_loopback(tmp_path: Path) -> None:
    assert server.resolve_access_token("127.0.0.1", None) is None
    assert server.resolve_access_token("::1", None) is None
    assert server.resolve_access_token("localhost", None) is None
    first, second = server.resolve_access_token("0.0.0.0", None), server.resolve_access_token("192.168.1.7", None)
    assert first and second and first != second and len(first) >= 32
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    assert server.resolve_access_token("127.0.0.1", file) == TOKEN
    for invalid_token in ("short", "with a space inside it", ""):
        file.write_text(invalid_token)
        with pytest.raises(RequestError, match="at least 16 ASCII characters"):
            server.resolve_access_token("127.0.0.1", file)
    with pytest.raises(RequestError, match="cannot read the file"):
        server.resolve_access_token("127.0.0.1", tmp_path / "nothing")


def test_without_the_token_nothing_is_reported(runs: Path) -> None:
    client = open_client(runs, token=TOKEN)
    for path in ("/", "/api/experiments", "/api/openapi.json", "/static/site.css", "/experiments/done", "/nowhere"):
        assert client.get(path).status_code == 401, path
    invalid_headers = [
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"cookie": f"h2h={TOKEN}"},
        {"cookie": "h2h=;;="},
    ]
    for headers in invalid_headers:
        assert client.get("/", headers=headers).status_code == 401, headers
    assert client.get("/?token=wrong").status_code == 401
    assert client.post(f"/experiments/stopped/stop?token={TOKEN}").status_code == 401, "a link changes nothing"


def test_the_token_opens_by_header_and_by_link_and_leaves_the_address(runs: Path) -> None:
    client = open_client(runs, token=TOKEN)
    assert client.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    login = client.get(f"/experiments/done?token={TOKEN}")
    assert (login.status_code, login.headers["location"]) == (303, "/experiments/done")
    cookie = login.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
    assert client.get("/experiments/done").status_code == 200, "the cookie is enough from now on"
    redirect = client.get(f"//evil.example/?token={TOKEN}", headers={"cookie": ""})
    assert not redirect.headers.get("location", "/").startswith("//")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none", "origin": "http://127.0.0.1:8000"},
    ],
)
def test_another_site_changes_nothing(client: TestClient, headers: dict[str, str]) -> None:
    for path in ("/experiments/stopped/resume", "/api/experiments/stopped/resume"):
        response = client.post(path, headers=headers)
        assert (response.status_code, "cross-site" in response.text) == (403, True)


def test_our_own_page_and_a_program_may_change_something(client: TestClient) -> None:
    own = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    for headers in (own, {}):
        assert client.post("/api/experiments/done/stop", headers=headers).status_code == 409  # it is not running


def test_no_state_is_changed_by_get(client: TestClient, runs: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in runs.rglob("*"))
    for path in ("stop", "resume", "seeds", "seeds?num_seeds=3", "report", "events?x"):
        for method in ("GET", "HEAD", "OPTIONS", "DELETE", "PUT", "PATCH"):
            if not path.startswith("events"):
                assert client.request(method, f"/experiments/done/{path}").status_code in (404, 405), (
                    method,
                    path,
                )
                assert client.request(method, f"/api/experiments/done/{path}").status_code in (404, 405)
    client.get("/start/mine.toml?do=start&name=new")
    assert sorted((path, path.stat().st_mtime_ns) for path in runs.rglob("*")) == before
    assert training_process.list_names_started_by_server(runs) == []


def test_every_answer_forbids_foreign_scripts_frames_and_requests(client: TestClient) -> None:
    for path, headers in (
        ("/", {}),
        ("/nowhere", {}),
        ("/api/experiments", {}),
        ("/static/live.js", {}),
        ("/", {"host": "x.y"}),
    ):
        result = client.get(path, headers=headers).headers
        policy = result["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert result["x-content-type-options"] == "nosniff"
        assert result["referrer-policy"] == "same-origin"


def test_a_body_is_cut_off_with_and_without_a_length(client: TestClient) -> None:
    num_bytes_sent = 0

    def stream_body() -> Any:
        nonlocal num_bytes_sent
        for _ in range(1600):
            num_bytes_sent += 65536
            yield b"x" * 65536

    for path in ("/start/mine.toml", "/api/experiments", "/api/estimates", "/experiments/done/seeds"):
        assert client.post(path, content=b"x" * (request_guard.MAX_BODY_BYTES + 1)).status_code == 413, path
        kind = "application/json" if path.startswith("/api") else "application/x-www-form-urlencoded"
        assert client.post(path, content=stream_body(), headers={"content-type": kind}).status_code == 413, path
    assert client.post("/api/estimates", content=b"{}", headers={"content-length": "-1"}).status_code == 413


def test_a_body_that_streams_in_is_read_no_further_than_the_limit() -> None:
    num_bytes_read = 0

    async def receive() -> dict[str, Any]:
        nonlocal num_bytes_read
        num_bytes_read += 65536
        return {"type": "http.request", "body": b"x" * 65536, "more_body": True}

    async def send_requests() -> None:
        receive_limited = request_guard._limit_request_body(receive)
        while True:
            await receive_limited()

    with pytest.raises(request_guard.HTTPException, match="larger than 256 kB"):
        asyncio.run(send_requests())
    assert num_bytes_read <= request_guard.MAX_BODY_BYTES + 65536


def test_a_body_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "BODY_TIMEOUT_SECONDS", 0.05)

    async def send_requests() -> None:
        await request_guard._limit_request_body(asyncio.Event().wait)()  # type: ignore[arg-type]

    with pytest.raises(request_guard.HTTPException, match="timeout while receiving the body"):
        asyncio.run(send_requests())


def test_requests_at_once_have_a_limit_and_a_place_becomes_free_again() -> None:
    responses: list[int] = []
    release = asyncio.Event()

    async def wait_for_release(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            responses.append(message["status"])

    async def send_requests() -> None:
        guard = request_guard.RequestGuard(wait_for_release, allowed_hosts=AllowedHosts.for_address("127.0.0.1"))
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
        request = request_guard.MAX_CONCURRENT_REQUESTS["read"] + 12
        tasks = [asyncio.create_task(guard(dict(scope), release.wait, send)) for _ in range(request)]  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        assert responses == [503] * 12
        release.set()
        await asyncio.gather(*tasks)
        await guard(dict(scope), release.wait, send)  # type: ignore[arg-type]
        assert responses[-1] == 200

    asyncio.run(send_requests())


def test_a_web_socket_is_closed_at_once() -> None:
    output: list[dict[str, Any]] = []

    async def app(*_: Any) -> None:
        raise AssertionError("nothing behind the guard is asked")

    async def send(message: Any) -> None:
        output.append(message)

    guard = request_guard.RequestGuard(app, allowed_hosts=AllowedHosts.for_address("127.0.0.1"))
    asyncio.run(guard({"type": "websocket", "headers": []}, asyncio.Event().wait, send))  # type: ignore[arg-type]
    assert output == [{"type": "websocket.close", "code": 1008}]


def test_what_is_rejected_is_not_repeated_to_the_reader(client: TestClient, runs: Path) -> None:
    locked_client = open_client(runs, token=TOKEN)
    assert HOSTILE not in locked_client.get("/", params={"token": HOSTILE}).text
    for path in (f"/experiments/{HOSTILE}", f"/start/{HOSTILE}", f"/static/{HOSTILE}", f"/{HOSTILE}"):
        assert "<script>alert" not in client.get(path).text
