"""A headless Chromium for tests, driven over a pipe by its own protocol: to open a page, ask things, and look at it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from headrace.core.files import readable

NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "about:blank",
)
_SHELL = 'exec "$@" 3<&"$READS" 4>&"$WRITES"'


def found() -> str | None:
    """The browser that is installed here."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Browser:
    """One page of a browser with a profile of its own, until the block ends."""

    def __init__(self, program: str, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        command = [program, f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}", *_OPTIONS]
        self._process = subprocess.Popen(
            ["bash", "-c", _SHELL, "browser", *command],
            env={**os.environ, "READS": str(reads), "WRITES": str(writes)},
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._buffer = b""
        self._number = 0
        self.complaints: list[str] = []
        """What the page has written to its console as an error, and exceptions."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self.resize(width, height)
        scheme = "dark" if dark else "light"
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)  # at which it ends
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        self._profile.cleanup()

    def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        """Go to an address."""
        self._call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """The value of an expression of the page's language."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, expression: str, timeout_s: float = 30.0) -> Any:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + timeout_s
        while not (value := self._holds(expression)):
            if time.monotonic() > end:
                raise AssertionError(f"not within {timeout_s} s: {expression}; {self.complaints}")
        return value

    def _holds(self, expression: str) -> Any:
        """What it is after the page's next change, or after a moment."""
        return self.ask(f"new Promise((done) => setTimeout(() => done(Boolean({expression})), 50))")

    def picture(self, path: Path) -> None:
        """Save what the page looks like."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            thrown = parameters["exceptionDetails"]
            self.complaints.append(thrown.get("exception", {}).get("description", thrown["text"]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def _next(self, timeout_s: float = 60.0) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready = readable(self._from, 1000 * timeout_s)
            data = os.read(self._from, 1 << 20) if ready else b""
            if not data:
                raise AssertionError("the browser doesn't answer" if not ready else "the browser has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))
