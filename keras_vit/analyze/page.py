"""Self-contained HTML pages with text, tables and pictures.

A page is one file: pictures and style are embedded, and a content security policy blocks all
requests. It supports light and dark mode, small screens, printing and screen readers (`alt` texts).
"""

import base64
import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2127; --soft: #5a6270; --paper: #ffffff; --line: #d9dde3; --tint: #f4f6f8;
  --link: #00598c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #a3abb8; --paper: #15181c; --line: #363c45;
  --tint: #1e2228; --link: #7cc4f2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
p { margin: .6rem 0; max-width: 46rem; }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 1rem 0 0; padding: 0; list-style: none; }
figure { margin: 1rem 0; }
figcaption { color: var(--soft); font-size: .9rem; max-width: 46rem; margin-top: .4rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
.scroll:focus-visible { outline: 2px solid var(--link); }
.picture { background: #ffffff; text-align: center; }
.picture img { display: block; margin: 0 auto; max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: .92rem; overflow-wrap: normal; }
tr + tr > *, thead + tbody > tr > * { border-top: 1px solid var(--line); }
.scroll.table { display: inline-block; max-width: 100%; vertical-align: top; }
th, td { padding: .3rem .8rem; text-align: left; vertical-align: top; font-variant-numeric: tabular-nums; }
thead th { background: var(--tint); }
tbody th { font-weight: 500; }
.number { text-align: right; white-space: nowrap; }
.long { overflow-wrap: anywhere; min-width: 12rem; }
@media (max-width: 40rem) { .picture img.large { max-width: 36rem; } th, td { padding: .3rem .5rem; } }
@media print { :root { --ink: #000; --soft: #333; --paper: #fff; --tint: #fff; --link: #000; } nav { display: none; }
  body { max-width: none; padding: 0; font-size: 10pt; } figure, tr { break-inside: avoid; } h2 { break-after: avoid; }
  .scroll { overflow: visible; border: 0; } .picture img.large { max-width: 100%; } }
"""
_PIXELS_OF_PICTURES, _PIXELS_OF_BROWSERS = 150, 96  # per inch
# Wider pictures, in pixels on the screen, scroll on a phone instead of shrinking.
_LARGE = 420
_LONG = 32  # characters; longer words may be broken anywhere
_NUMBER = re.compile(r"[-+−]?[\d.,]+(e[-+]?\d+)?( (%|px))?")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A PNG with a caption and an `alt` text that describes its content."""

    path: Path
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first cell of a row is its name. Numeric columns are aligned right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A heading, followed by paragraphs of plain text, tables and pictures."""

    title: str
    blocks: Sequence[str | Table | Picture]


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Returns an HTML page. All texts are plain text: characters of HTML are escaped.

    Args:
        title: Heading of the page and title of the window.
        lead: Paragraph below the heading; omitted if empty.
        sections: Sections in order; the page starts with links to them.

    Raises:
        OSError: If a picture cannot be read.
        ValueError: If a picture is not a PNG.

    Example:
        >>> text = page("Photos", "", [Section("A <cat>", ["It sleeps."])])
        >>> '<h2 id="part-1">A &lt;cat&gt;</h2>' in text, "http" in text.replace("http-equiv", "")
        (True, False)
    """
    # An empty icon, since browsers may request a missing one.
    head = [
        '<meta charset="utf-8">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{written(title)}</title>",
        '<link rel="icon" href="data:,">',
        f"<style>{_STYLE}</style>",
    ]
    names = [(f"part-{number}", section) for number, section in enumerate(sections, start=1)]
    links = "".join(
        f'<li><a href="#{name}">{written(section.title)}</a></li>' for name, section in names
    )
    body = [
        "<header>",
        f"<h1>{written(title)}</h1>",
        *([f"<p>{written(lead)}</p>"] if lead else []),
    ]
    body += [f'<nav aria-label="Contents"><ul>{links}</ul></nav>'] if links else []
    body += ["</header>", "<main>"]
    for name, section in names:
        body += [
            f'<section aria-labelledby="{name}">',
            f'<h2 id="{name}">{written(section.title)}</h2>',
        ]
        body += [*map(_render_block, section.blocks), "</section>"]
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        *head,
        "</head>",
        "<body>",
        *body,
        "</main>",
        "</body>",
    ]
    return "\n".join([*lines, "</html>", ""])


def written(text: str) -> str:
    """Escapes plain text for HTML.

    Bytes of a file name that are not UTF-8 become escape sequences, line breaks become spaces, and
    control characters become U+FFFD. So do characters that change the direction of writing, since
    they would affect the rest of the line.

    Example:
        >>> written('<a href="x">\\udce9\\x07')
        '&lt;a href=&quot;x&quot;&gt;\\\\udce9\\ufffd'
    """
    plain = " ".join(text.split()).encode("utf-8", "backslashreplace").decode("utf-8")
    return html.escape("".join("\ufffd" if _is_hidden(sign) else sign for sign in plain))


def _is_hidden(sign: str) -> bool:
    is_turning = unicodedata.bidirectional(sign) in (
        "LRE",
        "RLE",
        "LRO",
        "RLO",
        "PDF",
        "LRI",
        "RLI",
        "FSI",
        "PDI",
    )
    return is_turning or unicodedata.category(sign) in ("Cc", "Cn")


def _render_block(block: str | Table | Picture) -> str:
    if isinstance(block, Picture):
        return "\n".join(_render_figure(block))
    return (
        "\n".join(_render_table(block)) if isinstance(block, Table) else f"<p>{written(block)}</p>"
    )


def _render_figure(picture: Picture) -> Iterator[str]:
    pixels = picture.path.read_bytes()
    if not pixels.startswith(b"\x89PNG\r\n\x1a\n") or pixels[12:16] != b"IHDR":
        raise ValueError(
            f"{picture.path} is not a PNG. Pages support only PNG: save the picture in this format."
        )
    sides = (int.from_bytes(pixels[start : start + 4], "big") for start in (16, 20))
    width, height = (
        max(1, round(side * _PIXELS_OF_BROWSERS / _PIXELS_OF_PICTURES)) for side in sides
    )
    yield "<figure>"
    name = f'role="region" tabindex="0" aria-label="{written(picture.caption or picture.alt)}"'
    large = ' class="large"' if width > _LARGE else ""
    data = base64.b64encode(pixels).decode("ascii")
    source = f'src="data:image/png;base64,{data}"'
    image = f'<img{large} width="{width}" height="{height}" alt="{written(picture.alt)}" {source}>'
    yield (
        f'<div class="scroll picture" {name}>{image}</div>'
        if large
        else f'<div class="scroll picture">{image}</div>'
    )
    if picture.caption:
        yield f"<figcaption>{written(picture.caption)}</figcaption>"
    yield "</figure>"


def _render_table(table: Table) -> Iterator[str]:
    columns = [[row[place] for row in table.rows] for place in range(len(table.header))]
    numeric = [
        any(column) and all(map(_NUMBER.fullmatch, filter(None, column))) for column in columns
    ]
    yield '<div class="scroll table" role="region" tabindex="0" aria-label="Table"><table>'
    if any(table.header):
        names = [
            _render_cell('th scope="col"', *cell)
            for cell in zip(table.header, numeric, strict=True)
        ]
        yield f"<thead><tr>{''.join(names)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        kinds = ['th scope="row"', *["td"] * (len(row) - 1)]
        yield f"<tr>{''.join(map(_render_cell, kinds, row, numeric))}</tr>"
    yield "</tbody></table></div>"


def _render_cell(kind: str, text: str, is_number: bool) -> str:
    is_long = any(len(word) > _LONG for word in text.split())
    name = ' class="number"' if is_number else ' class="long"' if is_long else ""
    return f"<{kind}{name}>{written(text)}</{kind[:2]}>"
