"""What MkDocs calls while it builds the site: pages from the code, and links of the repository."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.exceptions import PluginError  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.structure.pages import Page  # noqa: E402

from website import links, reference  # noqa: E402

# How lunr appends the character and the number of a node.
LUNR_NODE = "e=e+s+o.id"
# Pages that lie outside of docs/, because readers of the repository look for them there.
OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "experiments/README.md",
    "experiments/serving/README.md",
)


def slugify(text: str, separator: str) -> str:
    """Returns the anchor of a heading, as hosts of git make them.

    Example:
        >>> slugify("ViT_B16: sizes (px)", "-")
        'vit_b16-sizes-px'
    """
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside of docs/, and those that are made from the code."""
    for name in OUTSIDE:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    for name, text in reference.make_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links of the repository into links of the site."""
    path = page.file.src_uri
    if path == "CHANGELOG.md":  # it mentions everything, and would be the first result
        page.meta["search"] = {"exclude": True}
    if path.startswith("reference/") or path.endswith(".ipynb"):
        return markdown
    pages = {_in_repository(file.src_uri): file.src_uri for file in files}
    return links.rewrite(
        markdown, page=_in_repository(path), pages=pages, repository=config.repo_url or None
    )


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links of a notebook to other pages into links of the site."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return re.sub(r'(href="[^":]+)\.(?:md|ipynb)(?=["#])', r"\1.html", html)


def on_post_build(config: MkDocsConfig) -> None:
    """Mends the search, and removes 404.html, which loads its style from the root of the host, where
    most sites are not.
    """
    _mend_search(Path(config.site_dir))
    (Path(config.site_dir) / "404.html").unlink(missing_ok=True)


def _mend_search(site: Path) -> None:
    """Lets the search tell terms with digits apart.

    lunr 2.3.9 stores its terms as a graph. It names a node by the next characters, each followed by
    the number of the node that it leads to. A node with "a" to node 5 and "1" to node 7 has the same
    name, a517, as one with "a" to node 517, so lunr merges the two. It then finds terms that no page
    has, and the query fails: "No matching documents". Here a comma ends each number.
    """
    (script,) = (site / "assets/javascripts/workers").glob("search.*.min.js")
    text = script.read_text(encoding="utf-8")
    if text.count(LUNR_NODE) != 1:
        raise PluginError(
            f"{script.name} of MkDocs-Material has changed: {LUNR_NODE!r} is not in it once. See "
            "whether `_mend_search` in website/hooks.py is still needed."
        )
    script.write_text(text.replace(LUNR_NODE, LUNR_NODE + '+","'), encoding="utf-8")


def _in_repository(path: str) -> str:
    return path if path in OUTSIDE else f"docs/{path}"
