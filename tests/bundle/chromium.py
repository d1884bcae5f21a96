"""Chromium without a screen: pages of a folder, served here, asked by its debugging protocol.

In: a folder, the size of the window. Out: what a script in a page gives, pictures of the page. Chromium has to be
there, and tornado, for its WebSocket.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import http.server
import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Without these it looks for other machines as it starts.
QUIET = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", *QUIET]
SOUND = [
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
]


def missing() -> str:
    """What is missing; "" where all is there."""
    return "" if shutil.which("chromium") else "no chromium: apt-get install chromium"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_words: Any) -> None:
        pass


class Page:
    """A page in a tab. Its functions wait for what they ask for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: Any) -> None:
        self._loop, self._socket, self._number = loop, socket, 0

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A call of the protocol."""
        return self._loop.run_until_complete(asyncio.wait_for(self._call(method, parameters), 120))

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._socket.write_message(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(await self._socket.read_message())
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def evaluate(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        done = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        self.evaluate(
            f"new Promise((done) => {{ const look = () => ({script}) ? done() : setTimeout(look, 20); look(); }})"
        )

    def picture(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png")["data"]))


def _port(file: Path) -> str:
    """Where Chromium listens, once it has written that."""
    for _ in range(600):
        if file.exists() and file.read_text().count("\n"):
            return file.read_text().split("\n")[0]
        time.sleep(0.1)
    raise TimeoutError("Chromium does not start")


@contextmanager
def page(folder: Path, scratch: Path, size: tuple[int, int] = (900, 640)) -> Iterator[Page]:
    """The folder's index.html in a tab. scratch: an empty folder for what Chromium writes."""
    from tornado.websocket import websocket_connect

    server = http.server.ThreadingHTTPServer(("localhost", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = [
        *FLAGS,
        *SOUND,
        f"--window-size={size[0]},{size[1]}",
        f"--user-data-dir={scratch}",
        "--remote-debugging-port=0",
    ]
    browser = subprocess.Popen(["chromium", *words, "about:blank"], stderr=subprocess.DEVNULL)
    loop = asyncio.new_event_loop()
    try:
        port = _port(scratch / "DevToolsActivePort")
        with urllib.request.urlopen(f"http://localhost:{port}/json") as tabs:
            (address,) = [tab["webSocketDebuggerUrl"] for tab in json.load(tabs) if tab["type"] == "page"]

        async def connect() -> Any:
            return await websocket_connect(address, max_message_size=1 << 28)

        socket = loop.run_until_complete(connect())
        found = Page(loop, socket)
        found("Page.navigate", url=f"http://localhost:{server.server_port}/")
        yield found
        socket.close()
        loop.run_until_complete(asyncio.sleep(0.1))  # it says goodbye
    finally:
        browser.terminate()
        browser.wait()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        server.shutdown()
        server.server_close()
