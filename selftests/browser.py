"""A headless Chromium, driven over a pair of pipes: the page of a report is looked at as a reader's browser shows it.

Chromium speaks its DevTools protocol (https://chromedevtools.github.io/devtools-protocol) over file descriptors 3 and
4, one JSON object after another, each ended by a zero byte. Nothing but the standard library is needed, and no port.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60.0
"""For one answer: a browser that starts on a crowded machine takes some."""

HINT = "no Chromium on PATH: install it (Debian: apt-get install chromium) or name one in CHROMIUM"


def find() -> str | None:
    """The browser's program: ``CHROMIUM`` in the environment, or the first of :data:`NAMES` on ``PATH``."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one page. ``events`` are all that came without being asked for."""

    def __init__(self, program: str, profile: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        self._rest = b""
        self._process, self._write, self._read = _start(program, profile)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = ""
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer.

        :raises RuntimeError: if the browser refuses it; :raises TimeoutError: if it does not answer.
        """
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if getattr(self, "_session", ""):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            answer = self._next(until)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(
        self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False, script: bool = True,
    ) -> None:
        """Show ``page`` from disk at this size; :attr:`events` starts anew."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + SECONDS
        while not self._loaded(page.resolve().as_uri()):
            self.events.append(self._next(until))

    def run(self, expression: str) -> Any:
        """What the JavaScript ``expression`` gives, as JSON; a promise is waited for."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def press(self, key: str, code: int, *, text: str = "") -> None:
        """Press and release one key, as a keyboard would."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def picture(self, path: Path) -> None:
        """What is on the screen, as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def told(self, *methods: str) -> list[dict[str, Any]]:
        """The parameters of the events of these kinds since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def close(self) -> None:
        """End the browser; its pipes end with it."""
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self._session = ""
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def _loaded(self, url: str) -> bool:
        """Whether ``url`` was loaded to its end; the blank page before it may still be telling of its own."""
        methods = [event.get("method") for event in self.events]
        there = [n for n, event in enumerate(self.events) if event.get("method") == "Page.frameNavigated"
                 and event["params"]["frame"]["url"] == url]
        return bool(there) and "Page.loadEventFired" in methods[there[0]:]

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser did not answer within {SECONDS:g} s")
            more = os.read(self._read, 1 << 20)
            if not more:
                raise RuntimeError(f"the browser ended with status {self._process.wait(10)}")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


_TRAMPOLINE = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]
for descriptor, duplicate in zip((3, 4), ours):
    os.dup2(duplicate, descriptor)
    os.close(duplicate)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Puts two descriptors where Chromium looks for them, and becomes Chromium."""


def _start(program: str, profile: Path) -> tuple[subprocess.Popen[bytes], int, int]:
    """The process, and our ends of its descriptors 3 (it reads) and 4 (it writes)."""
    its_read, our_write = os.pipe()
    our_read, its_write = os.pipe()
    # --no-sandbox: a container's root has no other way; the page is our own.
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
               "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", _TRAMPOLINE, str(its_read), str(its_write), program, *options, "about:blank"],
        pass_fds=(its_read, its_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    os.close(its_read)
    os.close(its_write)
    return process, our_write, our_read


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser for the time of a ``with`` block.

    :raises FileNotFoundError: if there is none; the message says how to install one.
    """
    program = find()
    if program is None:
        raise FileNotFoundError(HINT)
    browser = Browser(program, profile)
    try:
        yield browser
    finally:
        browser.close()
