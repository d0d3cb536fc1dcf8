"""The uvicorn server: socket binding, access token and shutdown."""

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
    """A uvicorn server that closes event streams before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, close_event_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self.close_event_streams = close_event_streams

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.close_event_streams()
        super().handle_exit(sig, frame)


def bind_socket(host: str, port: int) -> socket.socket:
    """Return the listening socket of the server, or raise a RequestError if the address is invalid or in use."""
    try:
        family, socket_type, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise RequestError(f"--host {host}: not an address of this machine") from None
    listener = socket.socket(family, socket_type, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise RequestError(
                f"port {port} is in use; choose another with --port, or --port 0 for any free port"
            ) from None
        raise RequestError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    return listener


def resolve_access_token(host: str, token_file: Path | None) -> str | None:
    """Return the server's access token: from the file, new if other machines can connect, or None if not needed."""
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"--token-file {token_file}: cannot read the file ({error})") from None
        if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or any(character.isspace() for character in token):
            raise RequestError(
                f"--token-file {token_file}: needs at least {MIN_TOKEN_LENGTH} ASCII characters without spaces"
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
    """Serve the experiments in `runs_folder` until Ctrl-C. `on_ready` receives the URL once the server is listening."""
    token = resolve_access_token(host, token_file)
    with bind_socket(host, port) as listener:
        address = listener.getsockname()
        app = create_app(
            runs_folder,
            token=token,
            allowed_hosts=AllowedHosts.for_address(host, socket.gethostname() if token else ""),
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
        shown_host = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        on_ready(f"http://{shown_host}:{address[1]}/" + (f"?token={token}" if token else ""))
        with contextlib.suppress(KeyboardInterrupt):
            WebServer(config, app.state.context.watchers.end).run(sockets=[listener])
