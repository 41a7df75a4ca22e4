"""A small client of Chromium's DevTools protocol: a browser, its pages, and what they did.

Nothing but the standard library: a websocket is a handshake and frames with a short head.
"""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--mute-audio", "--hide-scrollbars"),
    "--disable-dev-shm-usage",
)
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10


def find_chromium() -> str | None:
    """Where a Chromium is; the variable CHROMIUM names one that is elsewhere."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _NAMES)), None)


class Socket:
    """A websocket to an address of this machine."""

    def __init__(self, address: str, timeout: float = 30) -> None:
        parts = urllib.parse.urlsplit(address)
        assert parts.hostname is not None
        self._socket = socket.create_connection((parts.hostname, parts.port or 80), timeout)
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        self._socket.sendall(head.encode())
        self._file = self._socket.makefile("rb")
        status = self._file.readline()
        if b" 101 " not in status:
            raise ConnectionError(f"the browser must answer with 101; got {status!r}")
        while self._file.readline().strip():
            pass

    def send(self, text: str, kind: int = _TEXT) -> None:
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        if size < 126:
            head = struct.pack(">BB", 0x80 | kind, 0x80 | size)
        elif size < 2**16:
            head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, size)
        stream = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(size)
        self._socket.sendall(head + mask + masked)

    def receive(self, timeout: float) -> str:
        """The next message, all of its parts."""
        self._socket.settimeout(timeout)
        message = b""
        while True:
            first, second = self._file.read(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack(">H", self._file.read(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", self._file.read(8))
            data, kind = self._file.read(size), first & 0x0F
            if kind == _PING:
                self.send(data.decode(), _PONG)
            elif kind == _CLOSE:
                raise ConnectionError("the browser closed the connection")
            else:
                message += data
                if first & 0x80:
                    return message.decode()

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Page:
    """One page: what it does is noted in `problems` and `requests`."""

    def __init__(self, address: str) -> None:
        self._socket = Socket(address)
        self._number = 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        # Only a page in front has the focus, and a browser without a window has none in front.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, timeout: float = 30, **arguments: Any) -> dict[str, Any]:
        """Call a method of the protocol, and wait for its answer."""
        self._number += 1
        number = self._number
        self._socket.send(json.dumps({"id": number, "method": method, "params": arguments}))
        end = time.monotonic() + timeout
        while True:
            message = json.loads(self._socket.receive(max(end - time.monotonic(), 0.01)))
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, found = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(found["exceptionDetails"])[:600])
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning"):
            self.problems.append(json.dumps(found["args"])[:600])
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.problems.append(found["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])

    def open(self, path: Path, width: int, **media: str) -> None:
        """Open a file in a window of this width; `media` are features such as those of colour."""
        phone = width < 600
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": k.replace("_", "-"), "value": v} for k, v in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {json.dumps(found['exceptionDetails'])[:600]}")
        return found["result"].get("value")

    def wait(self, script: str, timeout: float = 10) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + timeout
        while not self.run(script):
            if time.monotonic() > end:
                raise TimeoutError(f"not true within {timeout} s: {script}")
            time.sleep(0.03)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send an event of the mouse: Pressed, Released, Moved or Wheel."""
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    def key(self, key: str, code: str = "", text: str = "") -> None:
        """Press and release a key."""
        numbers = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, " ": 32}
        number = numbers.get(key, ord(key[0].upper()))
        what = {"key": key, "code": code or key, "windowsVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown", **what, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    def picture(self, path: Path, whole: bool = False) -> Path:
        """Write what is seen, or the whole page, as a PNG file."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def close(self) -> None:
        self._socket.close()


class Browser:
    """A Chromium without a window, for as long as the block lasts."""

    def __init__(self, program: str, folder: Path) -> None:
        self._folder = folder
        words = [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(words, stdout=nothing, stderr=nothing)
        self._port = self._wait_for_port()

    def _wait_for_port(self, timeout: float = 60) -> int:
        file, end = self._folder / "DevToolsActivePort", time.monotonic() + timeout
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(f"Chromium ended with status {self._process.returncode}")
            if file.is_file() and (lines := file.read_text().split()):
                return int(lines[0])
            time.sleep(0.05)
        self._process.kill()
        raise TimeoutError(f"Chromium did not open its port within {timeout} s")

    def page(self) -> Page:
        """Open a new page."""
        address = f"http://127.0.0.1:{self._port}/json/new?about:blank"
        request = urllib.request.Request(address, method="PUT")
        # Not through a proxy: the browser is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            return Page(json.load(answer)["webSocketDebuggerUrl"])

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
