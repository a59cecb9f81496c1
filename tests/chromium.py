"""Headless Chromium, driven over two pipes with its DevTools protocol, so that nothing but the browser
is needed. It has no network.
"""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from warm import HUNG_SECONDS

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine: `apt-get install chromium` brings one"
)


def _with_pipes(commands: int, answers: int) -> list[str]:
    """Starts what follows with these as its descriptors 3 and 4, where Chromium expects them.

    Not with `preexec_fn`: where another test has used JAX, that makes it warn of a fork.
    """
    code = (
        "import fcntl, os, sys\n"
        "first, second = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in "
        "sys.argv[1:3])\n"
        "os.dup2(first, 3), os.dup2(second, 4)\n"
        "os.execv(sys.argv[3], sys.argv[3:])"
    )
    return [sys.executable, "-c", code, str(commands), str(answers)]


class Browser:
    """A tab of a headless Chromium, and what it has told since a page was opened."""

    def __init__(self, profile: Path):
        (commands, self._write), (self._read, answers) = os.pipe(), os.pipe()

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [
                *_with_pipes(commands, answers),
                BROWSER,
                *flags,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # it puts a socket there, whose path may have 107 bytes
            env={**os.environ, "TMPDIR": "/tmp"},
            pass_fds=(commands, answers),
        )
        os.close(commands)
        os.close(answers)
        self._numbers, self._rest, self.events = itertools.count(1), b"", []
        self._session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.send(f"{domain}.enable")
        self.send(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=0,
            uploadThroughput=0,
        )

    def send(self, method: str, **parameters: Any) -> dict:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path, query: str = "") -> None:
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri() + query)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def show(self, width: int, scheme: str = "light", media: str = "screen") -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=844,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.send(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def ask(self, expression: str) -> Any:
        return self.send("Runtime.evaluate", expression=expression, returnByValue=True)[
            "result"
        ].get("value")

    def screenshot(self, path: Path) -> bytes:
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(shot))
        return path.read_bytes()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=HUNG_SECONDS)
        os.close(self._write)
        os.close(self._read)

    def _next(self) -> dict:
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], HUNG_SECONDS)[0], "the browser is silent"
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


def complaints(browser: Browser) -> list[Any]:
    """What a console would show in red, or yellow."""
    logged = [
        event["params"]["entry"]["text"]
        for event in browser.events
        if event["method"] == "Log.entryAdded"
    ]
    said = [
        event["params"]
        for event in browser.events
        if event["method"].startswith(("Runtime.console", "Runtime.exc"))
    ]
    return logged + said


def requested(browser: Browser) -> list[str]:
    """Addresses that the page asked for, its own and what it carries left out."""
    sent = [
        event["params"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    urls = [each["request"]["url"] for each in sent]
    return [url for url in urls if not url.startswith("data:")][1:]
