"""The server around the application: where it listens, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from headtohead.errors import RequestError
from headtohead.web.app import create
from headtohead.web.request_guard import Hosts, is_loopback
from headtohead.web.timeout_protocol import Patient

SHORTEST_TOKEN = 16


class Server(uvicorn.Server):
    """uvicorn's, which lets go of those who watch before it waits for them."""

    def __init__(self, config: uvicorn.Config, let_go: Callable[[], None]) -> None:
        super().__init__(config)
        self.let_go = let_go

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.let_go()
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address; a port that is taken is said in plain words."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise RequestError(f"--host {host}: is no address of this machine") from None
    made = socket.socket(family, kind, proto)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
        made.listen(512)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise RequestError(f"port {port} is in use; give another one with --port, or --port 0 for any") from None
        raise RequestError(f"cannot listen at {host}, port {port}: {error.strerror}") from None
    return made


def token_for(host: str, file: Path | None) -> str | None:
    """The token: that of the file, or a new one where others than this machine can ask."""
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"--token-file {file}: cannot be read ({error})") from None
        if len(token) < SHORTEST_TOKEN or not token.isascii() or any(c.isspace() for c in token):
            raise RequestError(f"--token-file {file}: at least {SHORTEST_TOKEN} letters and digits without a space")
        return token
    return None if is_loopback(host) else secrets.token_urlsafe(24)


def serve(
    runs: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
    models: Sequence[str] = (),
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the experiments below RUNS until Ctrl-C. `ready` is called with the address once it listens."""
    token = token_for(host, token_file)
    with listen(host, port) as made:
        named = made.getsockname()
        app = create(runs, token=token, hosts=Hosts.of(host, socket.gethostname() if token else ""), models=models)
        config = uvicorn.Config(
            app,
            http=Patient,
            ws="none",
            loop="asyncio",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=3,
            server_header=False,
        )
        shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{named[1]}/" + (f"?token={token}" if token else ""))
        with contextlib.suppress(KeyboardInterrupt):
            Server(config, app.state.site.watchers.end).run(sockets=[made])
