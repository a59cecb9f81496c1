"""The page as a browser reads it: well-formed, complete in itself, and nothing in a text is more
than text.
"""

import base64
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from keras_vit.analyze.page import Picture, Section, Table, page, written

ODD = [
    "<script>alert(1)</script>",
    '"><img src=x onerror="alert(1)">',
    "' onmouseover='alert(1)",
    "a & b &amp; c",
    "猫 дом naïve",
    "line\nbreak\tand\x0bmore",
]
_VOID = ("meta", "link", "img", "br", "hr")


class Reader(HTMLParser):
    """Fails where tags are not closed in order; keeps what was opened and what is read."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.opened, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.opened == []

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"an attribute stands twice in <{tag}>"
        self.tags.append((tag, dict(attributes)))
        if tag not in _VOID:
            self.opened.append(tag)

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def handle_data(self, data):
        if self.opened and self.opened[-1] not in ("style", "title"):
            self.texts.append(data)

    def of(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def png(path: Path, width: int = 2, height: int = 3) -> Path:
    """A black PNG, written by hand."""
    chunks = b""
    for name, data in (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0" * (width + 1) * height)),
        (b"IEND", b""),
    ):
        chunks += (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    return path


@pytest.fixture
def full(tmp_path: Path) -> str:
    picture = png(tmp_path / "black.png")
    blocks = [
        *ODD,
        *(Picture(path=picture, alt=text, caption=text) for text in ODD),
        Table(ODD, [ODD, ODD]),
    ]
    return page(ODD[0], ODD[1], [Section(text, blocks) for text in ODD])


def test_it_is_well_formed_and_has_what_a_page_needs(full: str):
    read = Reader(full)
    assert full.startswith("<!doctype html>\n")
    assert read.of("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in read.of("meta")
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in read.of("meta")
    assert [len(read.of(tag)) for tag in ("title", "main", "h1", "h2", "img")] == [
        1,
        1,
        1,
        len(ODD),
        len(ODD) ** 2,
    ]
    identifiers = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    assert [link["href"] for link in read.of("a")] == [f"#{name}" for name in identifiers]
    assert [section["aria-labelledby"] for section in read.of("section")] == identifiers


def test_it_asks_nobody_for_anything(full: str):
    read = Reader(full)
    assert "default-src 'none'" in next(
        meta["content"] for meta in read.of("meta") if "http-equiv" in meta
    )
    assert {tag for tag, _ in read.tags}.isdisjoint(
        ("script", "iframe", "object", "embed", "base", "form", "video")
    )
    addresses = [
        value
        for _, each in read.tags
        for name, value in each.items()
        if name in ("src", "href", "srcset")
    ]
    assert addresses and all(address.startswith(("data:", "#")) for address in addresses)
    assert not re.search(r"url\(|@import|https?:|//", read_style(full))
    assert not any(name.startswith("on") for _, each in read.tags for name in each)


def read_style(text: str) -> str:
    return text.partition("<style>")[2].partition("</style>")[0]


def test_texts_are_shown_as_they_are(full: str):
    texts = Reader(full).texts
    for odd in ODD:
        # Once in the contents, and in its heading; in each section in a paragraph, a caption, and
        # three table cells.
        assert texts.count(" ".join(odd.split())) >= 2 + 5 * len(ODD)
    assert [image["alt"] for image in Reader(full).of("img")][: len(ODD)] == [
        " ".join(odd.split()) for odd in ODD
    ]


def test_a_picture_is_in_the_page_with_all_its_bytes(tmp_path: Path):
    path = png(tmp_path / "a name with <odd> signs.png", width=300, height=150)
    text = page("", "", [Section("one", [Picture(path=path, alt="black", caption="Black.")])])
    image = Reader(text).of("img")[0]
    assert (
        base64.b64decode(image["src"].removeprefix("data:image/png;base64,")) == path.read_bytes()
    )
    # 150 pixels in an inch, of which a browser has 96.
    assert (image["width"], image["height"], image["alt"]) == ("192", "96", "black")
    assert "odd" not in text


def test_what_is_no_png_is_refused(tmp_path: Path):
    for data in (b"", b"GIF89a", b"\x89PNG\r\n\x1a\n"):
        (tmp_path / "picture.png").write_bytes(data)
        with pytest.raises(ValueError, match=r"picture\.png is not a PNG\. Pages support only PNG"):
            page("", "", [Section("", [Picture(path=tmp_path / "picture.png", alt="")])])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m\udce9tro.jpg", r"m\udce9tro.jpg"),  # a byte that is no UTF-8, as `os.fsdecode` gives it
        ("bell\x07 escape\x1b[31m null\0", "bell\ufffd escape\ufffd[31m null\ufffd"),
        ("photo\u202egpj.exe", "photo\ufffdgpj.exe"),  # would be read as photoexe.jpg
        ("  many   spaces\r\n", "many spaces"),
        ("👩‍🔬 🏳️‍🌈", "👩‍🔬 🏳️‍🌈"),
        ("", ""),
    ],
)
def test_what_cannot_be_shown_is_seen_to_be_there(text: str, expected: str):
    assert written(text) == expected
    page(text, text, [Section(text, [text, Table([text], [[text]])])]).encode("utf-8")


def test_numbers_are_set_to_the_right_and_names_are_not():
    rows = [
        ["block 1", "3.5", "-1,024", "7 %", "", "12"],
        ["2", "", "1e-05", "−3 px", "", "about 12"],
    ]
    read = Reader(page("", "", [Section("", [Table(["layer", "a", "b", "c", "d", "e"], rows)])]))
    assert [cell.get("class") for cell in read.of("td")] == [
        "number",
        "number",
        "number",
        None,
        None,
    ] * 2
    assert [cell["scope"] for cell in read.of("th")] == ["col"] * 6 + ["row"] * 2
    assert read.of("th")[0].get("class") is None


def test_a_long_word_may_be_broken_so_that_a_table_stays_narrow():
    read = Reader(
        page("", "", [Section("", [Table(["a", "b"], [["x" * 33, "short words only " * 9]])])])
    )
    assert [cell.get("class") for cell in read.of("th")[2:] + read.of("td")] == ["long", None]


def test_a_table_without_rows_or_without_names_is_one_all_the_same():
    assert len(Reader(page("", "", [Section("", [Table(["a", "b"], [])])])).of("th")) == 2
    read = Reader(page("", "", [Section("", [Table(["", ""], [["a", "b"]])])]))
    assert len(read.of("thead")) == 0 and len(read.of("tr")) == 1


def test_a_page_may_be_empty():
    read = Reader(page("Nothing", "", []))
    assert read.of("nav") == [] and "".join(read.texts).split() == ["Nothing"]
