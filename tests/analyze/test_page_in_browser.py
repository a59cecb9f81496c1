"""The page as readers see it: in Chromium, from the disk, without a network, on a desk and on a
phone.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from chromium import Browser, complaints, needs_browser, requested

pytest.importorskip("matplotlib")

from keras_vit.analyze.page import Picture, Section, Table, page  # noqa: E402
from keras_vit.drawing import picture  # noqa: E402

pytestmark = [pytest.mark.slow, needs_browser]


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
