"""A small client of Chromium's DevTools protocol: a browser, its pages, and what they did.

Messages are JSON, and end with a zero byte. They go through two pipes, of which Chromium knows by
the numbers 3 and 4.
"""

import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--mute-audio", "--hide-scrollbars"),
    "--disable-dev-shm-usage",
)
# The numbers of keys, and what they write.
_KEYS = {"ArrowLeft": (37, ""), "ArrowRight": (39, ""), "Enter": (13, "\r"), " ": (32, " ")}
_WITH_PIPES = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'


class Browser:
    """A Chromium without a window."""

    def __init__(self, program: str, folder: Path) -> None:
        words = ["sh", "-c", _WITH_PIPES, "sh", program, *_FLAGS, f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number = 0
        self._received = b""
        self.events: list[dict[str, Any]] = []
        self.call("Browser.getVersion", timeout=60)  # wait until it has started

    def call(
        self, method: str, session: str | None = None, timeout: float = 30, **arguments: Any
    ) -> dict[str, Any]:
        """Call a method of the protocol, and wait for its answer."""
        self._number += 1
        question = {"id": self._number, "method": method, "params": arguments}
        question |= {"sessionId": session} if session else {}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\0")
        self._process.stdin.flush()
        end = time.monotonic() + timeout
        while (message := self._receive(end)).get("id") != self._number:
            self.events.append(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']['message']}")
        return message["result"]

    def _receive(self, end: float) -> dict[str, Any]:
        """The next message."""
        assert self._process.stdout is not None
        while b"\0" not in self._received:
            left = max(end - time.monotonic(), 0)
            ready, _, _ = select.select([self._process.stdout], [], [], left)
            if not ready:
                raise TimeoutError("Chromium did not answer in time")
            data = os.read(self._process.stdout.fileno(), 2**20)
            if not data:
                raise ConnectionError(f"Chromium ended with status {self._process.wait(10)}")
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


class Page:
    """A new page of a browser."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session: str = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        # Only a page in front has the focus, and a browser without a window has none in front.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, timeout: float = 30, **arguments: Any) -> dict[str, Any]:
        """Call a method of the protocol on this page."""
        return self._browser.call(method, self._session, timeout, **arguments)

    def events(self, method: str) -> list[dict[str, Any]]:
        """What the page did so far, of one kind."""
        wanted = {"method": method, "sessionId": self._session}
        return [
            event["params"] for event in self._browser.events if wanted.items() <= event.items()
        ]

    @property
    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        return [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]

    @property
    def problems(self) -> list[str]:
        """Errors and warnings."""
        bad = ("error", "warning")
        logged = [event["entry"] for event in self.events("Log.entryAdded")]
        found = self.events("Runtime.exceptionThrown")
        found += [
            event for event in self.events("Runtime.consoleAPICalled") if event["type"] in bad
        ]
        found += [entry for entry in logged if entry["level"] in bad]
        return [json.dumps(event)[:600] for event in found]

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

    def get(self, selector: str, what: str) -> Any:
        """Return a property of the first element that is selected, or what a method of it gives."""
        return self.run(f"document.querySelector('{selector}').{what}")

    def count(self, selector: str) -> int:
        """Return how many elements are selected."""
        return self.run(f"document.querySelectorAll('{selector}').length")

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

    def place(self, selector: str, x: float = 0.5, y: float = 0.5) -> tuple[float, float]:
        """Return a place on the screen, in shares of an element that is brought into view."""
        self.get(selector, "scrollIntoView({block: 'center'})")
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        box = self.get(selector, "getBoundingClientRect().toJSON()")
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    def click(self, selector: str) -> None:
        """Click on the middle of an element."""
        x, y = self.place(selector)
        for kind in ("Pressed", "Released"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def key(self, selector: str, *keys: str) -> None:
        """Give an element the focus, and press and release keys."""
        self.get(selector, "focus()")
        for key in keys:
            number, text = _KEYS[key]
            what = {"key": key, "code": key, "windowsVirtualKeyCode": number}
            self.call("Input.dispatchKeyEvent", type="keyDown", **what, text=text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
