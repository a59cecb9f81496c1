"""The site: it builds without warnings, its links lead somewhere, its reference is complete, and its
search works from the disk.

`make docs` builds it into site/.
"""

import ast
import dataclasses
import html.parser
import json
import os
import random
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser, complaints, needs_browser, requested
from warm import HUNG_SECONDS

import keras_vit
from keras_vit import layers, train
from keras_vit.commands import COMMANDS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
pytestmark = pytest.mark.once
# A question, and the pages of which one must be among the first results.
QUESTIONS = {
    "resume a killed run": ("how_to/resume", "training"),
    "several GPUs": ("how_to/many_devices", "explanation/devices", "training"),
    "attention rollout": ("how_to/look_inside", "analysis", "reference/analyze"),
    "int8 TFLite": ("how_to/phone", "export"),
    "unreadable photos": ("how_to/my_photos", "data"),
    "few-shot": ("how_to/few_labels", "evaluation"),
    "position embeddings interpolation": ("how_to/any_resolution", "checkpoints"),
    "timm": ("how_to/migrate", "checkpoints", "families"),
    "exit code 75": ("how_to/resume", "commands", "training"),
    "TensorFlow Serving": ("how_to/serve", "experiments/serving/README"),
}


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.sources: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name == "href" and value and tag == "a":
                self.links.append(value)
            if (name == "src" or (name == "href" and tag == "link")) and value:
                self.sources.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "NO_MKDOCS_2_WARNING": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    environment.pop("REPOSITORY_URL", None)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {
        path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
    }


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_an_anchor(site: Path, pages: dict[str, Page]):
    wrong = []
    for name, page in pages.items():
        for link in page.links + page.sources:
            address = urllib.parse.urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(name), address.path))
            target = name if not address.path else urllib.parse.unquote(target)
            anchor = urllib.parse.unquote(address.fragment)
            if not (site / target).is_file() or (
                anchor and target in pages and anchor not in pages[target].anchors
            ):
                wrong.append((name, link))
    assert len(pages) > 50 and wrong == []


@pytest.mark.slow
def test_nothing_comes_from_another_host(pages: dict[str, Page]):
    sources = {(name, each) for name, page in pages.items() for each in page.sources}
    outside = [pair for pair in sources if "//" in pair[1] and not pair[1].startswith("data:")]
    assert outside == []


@pytest.mark.slow
def test_every_page_of_docs_and_every_notebook_is_in_the_site(pages: dict[str, Page]):
    files = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb")]
    names = [path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in files]
    assert [name for name in names if name not in pages] == []


def test_the_reference_has_every_public_name_field_and_flag():
    from website import reference

    made = reference.make_pages()
    index = made["reference/index.md"]
    assert [name for name in layers.__all__ + train.__all__ if f"`{name}`" not in index] == []
    models = made["reference/models.md"]
    assert [name for name in keras_vit.list_models() if f"[`{name}`{{.whole}}]" not in models] == []
    missing = [
        name
        for name in keras_vit.__all__
        if name not in keras_vit.list_models()
        and name not in index
        and name not in ("__version__", "layers", "models", "variants")
    ]
    assert missing == []
    for config in (train.PretrainConfig, train.FinetuneConfig, train.RunConfig, train.LoopConfig):
        section = made["reference/recipes.md"].split(f"## {config.__name__}\n")[1].split("\n## ")[0]
        fields = [field.name for field in dataclasses.fields(config)]
        assert [name for name in fields if f"| `{name}`{{.whole}} |" not in section] == []
    for page in made:  # no page is empty
        assert len(made[page]) > 300, page
    for name in COMMANDS:
        assert f"\n## {name}\n" in made["reference/commands.md"]
    assert "| `--learning_rate`{.whole} |" in made["reference/commands.md"]
    assert "| `--neighbors`{.whole} |" in made["reference/scripts.md"]


def test_every_flag_of_a_script_is_read_from_its_source():
    from website import reference

    for path in (ROOT / "experiments").rglob("*.py"):
        calls = [
            call
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(call, ast.Call) and "DEFINE_" in ast.unparse(call.func)
        ]
        rows = reference.script_flags(path)
        assert len(rows) == len(calls)
        assert [row for row in rows if not row[2].strip()] == []


def test_constants_in_the_flags_of_a_script_are_shown_by_their_values(tmp_path):
    from website import reference

    (tmp_path / "colors.py").write_text("COLORS = {'red': 1, 'green': 2}\n")
    (tmp_path / "script.py").write_text(
        "import os\n"
        "from colors import COLORS\n"
        "SIDES: tuple[int, ...] = (16, 32)\n"
        'flags.DEFINE_list("colors", list(COLORS), f"Of {\', \'.join(COLORS)}.")\n'
        'flags.DEFINE_list("sides", [*map(str, SIDES)], "In pixels.")\n'
        'flags.DEFINE_integer("threads", os.cpu_count(), "Threads.")\n'
    )
    assert reference.script_flags(tmp_path / "script.py") == [
        ["`--colors`{.whole}", "`red,green`", "Of red, green."],
        ["`--sides`{.whole}", "`16,32`", "In pixels."],
        ["`--threads`{.whole}", "`os.cpu_count()`", "Threads."],
    ]


def test_a_field_without_a_text_is_an_error():
    from website import reference

    @dataclasses.dataclass
    class Config:
        """One line.

        Attributes:
            first, second: Two numbers,
                in pixels.
        """

        first: int
        second: int
        third: int

    with pytest.raises(ValueError, match=r"Config does not describe \['third'\]"):
        reference.field_meanings(Config)
    Config.__doc__ += "    third: More.\n"
    meanings = reference.field_meanings(Config)
    assert meanings == dict.fromkeys(("first", "second"), "Two numbers, in pixels.") | {
        "third": "More."
    }


def test_links_of_the_repository_become_links_of_the_site(tmp_path, monkeypatch):
    from website import links

    monkeypatch.chdir(ROOT)
    pages = {"docs/index.md": "index.md", "docs/how_to/serve.md": "how_to/serve.md"}
    pages |= {"CHANGELOG.md": "CHANGELOG.md", "docs/quickstart.png": "quickstart.png"}
    text = (
        "[a](../index.md#x) ![b](../quickstart.png) [c](../../CHANGELOG.md) [d](#here)\n"
        "[e](../../setup.cfg) [f](https://keras.io)\n"
        '<img src="../quickstart.png">\n```\n[g](../index.md)\n```\n'
    )
    rewrite = lambda host: links.rewrite(  # noqa: E731
        text, page="docs/how_to/serve.md", pages=pages, repository=host
    )
    assert rewrite(None) == text.replace("../../CHANGELOG", "../CHANGELOG").replace(
        "[e](../../setup.cfg)", "e"
    )
    assert "[e](https://host/me/blob/main/setup.cfg)" in rewrite("https://host/me")
    with pytest.raises(ValueError, match="there is no nothing.md"):
        links.rewrite("[a](nothing.md)", page="README.md", pages=pages, repository=None)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.mark.slow
@needs_browser
def test_every_page_fits_into_windows_and_asks_for_no_other_host(site, pages, browser):
    def fits(width: int) -> bool:
        return browser.ask("document.documentElement.scrollWidth") <= width

    wrong = []
    for name in pages:
        browser.show(1280)
        browser.open(site / name)
        found = {1280: fits(1280)}
        browser.show(390)
        found[390] = fits(390)
        broken = "[...document.images].filter(each => each.complete && !each.naturalWidth).length"
        found["broken images"] = browser.ask(broken)
        outside = [url for url in requested(browser) if not url.startswith(("file:", "blob:"))]
        if found != {1280: True, 390: True, "broken images": 0} or outside or complaints(browser):
            wrong.append((name, found, outside, complaints(browser)))
    assert wrong == []


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("question", QUESTIONS)
def test_search_finds_the_page_from_the_disk(question: str, site: Path, browser: Browser):
    browser.show(1280)
    browser.open(site / "index.html", f"?q={urllib.parse.quote(question)}")
    links = "[...document.querySelectorAll('.md-search-result__link')].map(each => each.href)"
    count = "document.querySelector('.md-search-result__meta').innerText"
    deadline = time.monotonic() + HUNG_SECONDS
    # the index is loaded and searched in the background
    while "matching document" not in browser.ask(count):
        assert time.monotonic() < deadline, "the search does not answer"
        time.sleep(0.1)
    found = browser.ask(links)
    names = [urllib.parse.urlsplit(link).path.removesuffix(".html") for link in found]
    first = list(dict.fromkeys(Path(name).relative_to(site).as_posix() for name in names))[:4]
    assert set(QUESTIONS[question]) & set(first), first


@pytest.mark.slow
@needs_browser
def test_search_tells_terms_with_digits_apart(site: Path, browser: Browser):
    draw = random.Random(252)  # with these words, lunr 2.3.9 finds some that are not among them
    letters = "0123456789ab"
    words = sorted(
        {"".join(draw.choice(letters) for _ in range(draw.randint(1, 5))) for _ in range(300)}
    )
    browser.open(site / "index.html", "?q=terms")
    lunr = "document.querySelector('iframe').contentWindow.lunr"
    deadline = time.monotonic() + HUNG_SECONDS
    while browser.ask(f"typeof {lunr}") == "undefined":
        assert time.monotonic() < deadline, "the search is not loaded"
        time.sleep(0.1)
    code = f"{lunr}.TokenSet._nextId = 1, {lunr}.TokenSet.fromArray({json.dumps(words)}).toArray()"
    assert sorted(browser.ask(code)) == words
