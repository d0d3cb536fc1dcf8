"""A child process that renders Vega-Lite charts and SVG figures with vl-convert.

vl-convert embeds a JavaScript engine, which aborts its process if it cannot reserve address space (`ulimit -v`) or
memory. In a child process, such a failure costs only the chart, not the report. The child is started for the first
chart, renders all of its parent's charts and exits with the parent. It is started with
`python -m headtohead.presentation.chart_renderer`; see `child_process` for the protocol.
"""

from __future__ import annotations

import atexit
import base64
import os
import resource
import threading
from pathlib import Path
from typing import Any

from headtohead.child_process import ChildExitedError, ChildProcess, ParentChannel
from headtohead.errors import ChartError

RENDER_TIMEOUT_SECONDS = 300.0
"""charts take less than a second, but the process mostly waits while training runs on every core"""
VL_CONVERT_OPTIONS = {
    "vegalite_to_svg": {},
    "vegalite_to_pdf": {},
    "vegalite_to_png": {"scale": 2},
    "svg_to_pdf": {},
    "svg_to_png": {"scale": 2},
}
"""vl-convert functions and their options; PNG images have twice the screen resolution"""


class ChartRenderer:
    """Starts the child process, and restarts it for the next chart if it dies after rendering at least one."""

    def __init__(self) -> None:
        self._child: ChildProcess | None = None
        self._failure = ""
        self._has_rendered = False
        self._lock = threading.Lock()

    def render(self, function: str, spec_or_svg: dict[str, Any] | str) -> bytes:
        """Call a vl-convert function on a Vega-Lite specification or an SVG, and return the image.

        Raise ChartError if the child fails.
        """
        with self._lock:
            if self._failure:
                raise ChartError(self._failure)
            if self._child is None:
                self._child = ChildProcess("headtohead.presentation.chart_renderer", log_path=Path(os.devnull))
            try:
                response = self._child.call({"function": function, "source": spec_or_svg}, RENDER_TIMEOUT_SECONDS)
            except ChildExitedError as error:
                self._close_child()
                message = f"the chart renderer {error}{_describe_memory_limit()}"
                self._failure = "" if self._has_rendered else message
                raise ChartError(message) from None
        if "error" in response:
            raise ChartError(response["error"])
        self._has_rendered = True
        return base64.b64decode(response["content"])

    def close(self) -> None:
        """Terminate the child. The next chart starts a new one."""
        with self._lock:
            self._close_child()

    def _close_child(self) -> None:
        if self._child is not None:
            self._child.terminate()
            self._child.close_pipes()
            self._child = None


def _describe_memory_limit() -> str:
    """Return a hint if this process limits the address space of the chart renderer, since that makes it fail."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"; its address space is limited to {limit >> 20:,} MiB, and it may need more (`ulimit -v unlimited`)"


_renderer = ChartRenderer()
atexit.register(_renderer.close)


def render(function: str, spec_or_svg: dict[str, Any] | str) -> bytes:
    """Render a chart or figure in this process's shared child; see `ChartRenderer.render`."""
    return _renderer.render(function, spec_or_svg)


def serve_render_requests() -> None:
    """Render charts with vl-convert in the child process, until the parent closes the channel."""
    channel = ParentChannel()
    import vl_convert  # noqa: TID251

    for request in channel.iter_requests():
        function = request["function"]
        try:
            content = getattr(vl_convert, function)(request["source"], **VL_CONVERT_OPTIONS[function])
        except (ValueError, RuntimeError) as error:
            message = " ".join(str(error).splitlines()[:2])  # without the stack trace
            channel.send({"request": request["request"], "error": message})
            continue
        image = content.encode() if isinstance(content, str) else content
        channel.send({"request": request["request"], "content": base64.b64encode(image).decode()})


if __name__ == "__main__":
    serve_render_requests()
