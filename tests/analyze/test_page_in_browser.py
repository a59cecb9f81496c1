"""The page as readers see it: in Chromium, from the disk, without a network, on a desk and on a
phone.

Chromium is driven over two pipes with its DevTools protocol, so nothing but the browser is needed.
"""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warm import HUNG_SECONDS

pytest.importorskip("matplotlib")

from keras_vit.analyze.page import Picture, Section, Table, page  # noqa: E402
from keras_vit.drawing import picture  # noqa: E402

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BROWSER is None, reason="no Chromium on this machine: `apt-get install chromium` brings one"
    ),
]


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

    def open(self, path: Path) -> None:
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
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
            assert select.select([self._read], [], [], 120)[0], "the browser does not answer"
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """All that a page may hold, and names that nobody would choose."""
    for name, size in (("wide", (14, 4)), ("small", (2, 2))):
        with picture(tmp_path / f"{name}.png", *size) as figure:
            figure.subplots().plot(np.arange(5))
    odd = [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "\udce9\u202e.jpg",
        "a" * 300,
        "猫.png",
    ]
    blocks = ["One paragraph. " * 40]
    blocks += [
        Picture(path=tmp_path / f"{name}.png", alt=f"{name}: a line", caption=odd[1])
        for name in ("wide", "small")
    ]
    blocks += [
        Table(
            ["photo", *(f"a long heading {number}" for number in range(12))],
            [[name, *["1.5"] * 12] for name in odd],
        )
    ]
    path = tmp_path / "a page #1.html"
    text = page(odd[0], odd[1], [Section(name, blocks) for name in odd])
    path.write_text(text, encoding="utf-8")
    return path


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_whole_quiet_and_as_wide_as_the_window(
    browser: Browser, written: Path, tmp_path: Path, width: int, scheme: str
):
    browser.show(width, scheme)
    browser.open(written)
    assert complaints(browser) == []
    assert requested(browser) == []
    sizes = browser.ask("[...document.images].map(image => image.complete && image.naturalWidth)")
    assert len(sizes) == 10 and set(sizes) == {14 * 150, 2 * 150}
    assert browser.ask(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    assert browser.ask("window.innerWidth") == width  # a phone widens what does not fit
    assert browser.ask("document.scripts.length") == 0
    assert browser.ask("document.querySelector('h1').textContent") == "<script>alert(1)</script>"
    red, green, blue = json.loads(
        browser.ask("getComputedStyle(document.body).backgroundColor")
        .replace("rgb(", "[")
        .replace(")", "]")
    )
    assert (red + green + blue > 600) == (scheme == "light")
    assert len(browser.screenshot(tmp_path / "page.png")) > 20_000


def test_a_wide_picture_is_not_shrunk_to_a_phone_but_moves(browser: Browser, written: Path):
    browser.show(390)
    browser.open(written)
    wide, small = browser.ask("[...document.images].slice(0, 2).map(image => image.clientWidth)")
    assert wide > 500 and small < 390
    assert browser.ask("document.images[0].parentElement.clientWidth") <= 390
    assert browser.ask("document.images[0].parentElement.tabIndex") == 0  # keys move it too


def test_a_contrast_that_can_be_read(browser: Browser, written: Path):
    """At least 4.5 to 1 for all text, as WCAG 2 asks."""
    for scheme in ("light", "dark"):
        browser.show(1280, scheme)
        browser.open(written)
        paper = luminance(browser.ask("getComputedStyle(document.body).backgroundColor"))
        for what in ("p", "a", "figcaption", "td", "h2"):
            ink = luminance(
                browser.ask(f"getComputedStyle(document.querySelector('{what}')).color")
            )
            light, dark = max(ink, paper), min(ink, paper)
            assert (light + 0.05) / (dark + 0.05) > 4.5, (scheme, what)


def luminance(color: str) -> float:
    shares = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    ]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_it_prints_black_on_white(browser: Browser, written: Path):
    browser.show(1280, "dark", media="print")
    browser.open(written)
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
    pdf = base64.b64decode(browser.send("Page.printToPDF", printBackground=False)["data"])
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") >= 2
