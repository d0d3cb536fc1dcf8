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
from headtohead.web.app import create_app
from headtohead.web.request_guard import AllowedHosts, is_loopback
from headtohead.web.timeout_protocol import TimeoutProtocol

MIN_TOKEN_LENGTH = 16


class WebServer(uvicorn.Server):
    """uvicorn's, which lets go of those who watch before it waits for them."""

    def __init__(self, config: uvicorn.Config, close_event_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self.let_go = close_event_streams

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.let_go()
        super().handle_exit(sig, frame)


def bind_socket(host: str, port: int) -> socket.socket:
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


def resolve_token(host: str, token_file: Path | None) -> str | None:
    """The token: that of the file, or a new one where others than this machine can ask."""
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"--token-file {token_file}: cannot be read ({error})") from None
        if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or any(c.isspace() for c in token):
            raise RequestError(
                f"--token-file {token_file}: at least {MIN_TOKEN_LENGTH} letters and digits without a space"
            )
        return token
    return None if is_loopback(host) else secrets.token_urlsafe(24)


def serve(
    runs_folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
    pretrained_models: Sequence[str] = (),
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the experiments below RUNS until Ctrl-C. `ready` is called with the address once it listens."""
    token = resolve_token(host, token_file)
    with bind_socket(host, port) as made:
        named = made.getsockname()
        app = create_app(
            runs_folder,
            token=token,
            allowed_hosts=AllowedHosts.of(host, socket.gethostname() if token else ""),
            pretrained_models=pretrained_models,
        )
        config = uvicorn.Config(
            app,
            http=TimeoutProtocol,
            ws="none",
            loop="asyncio",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=3,
            server_header=False,
        )
        shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        on_ready(f"http://{shown}:{named[1]}/" + (f"?token={token}" if token else ""))
        with contextlib.suppress(KeyboardInterrupt):
            WebServer(config, app.state.site.watchers.end).run(sockets=[made])
