"""Links of the repository as links of the site.

Pages link to each other by their paths in the repository, so that they can be read on any host of
git. On the site, a link to a file that is no page leads to the repository on its host, or becomes
plain text if the site was built without the address of a host.
"""

import os
import posixpath
import re
from collections.abc import Mapping

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_SOURCE = re.compile(r'(src|href)="([^"]+)"')


def rewrite(text: str, *, page: str, pages: Mapping[str, str], repository: str | None) -> str:
    """Returns the Markdown of a page with the links of the site.

    Args:
        text: The Markdown of the page.
        page: The path of the page in the repository.
        pages: {path in the repository: path in the site} of all pages and pictures.
        repository: The address of the repository on its host, or None.

    Raises:
        ValueError: If a link leads to a file that the repository does not have.

    Example:
        >>> pages = {"docs/a.md": "a.md", "CHANGELOG.md": "CHANGELOG.md"}
        >>> rewrite("[b](../CHANGELOG.md#new)", page="docs/a.md", pages=pages, repository=None)
        '[b](CHANGELOG.md#new)'
    """

    def replace(match: re.Match) -> str:
        mark, label, target = match.groups()
        found = _find(target, page, pages, repository)
        return label if found is None else f"{mark}[{label}]({found})"

    def replace_source(match: re.Match) -> str:
        return f'{match[1]}="{_find(match[2], page, pages, repository) or match[2]}"'

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    for i in range(0, len(parts), 2):  # not inside fenced blocks
        parts[i] = _SOURCE.sub(replace_source, _LINK.sub(replace, parts[i]))
    return "".join(parts)


def _find(target: str, page: str, pages: Mapping[str, str], repository: str | None) -> str | None:
    """Returns the target on the site, or None if it has none."""
    path, _, anchor = target.partition("#")
    if "://" in target or target.startswith("mailto:") or not path:
        return target
    file = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    if file in pages:
        folder = posixpath.dirname(pages[page])
        return posixpath.relpath(pages[file], folder or ".") + (f"#{anchor}" if anchor else "")
    if not os.path.exists(file):
        raise ValueError(f"{page} links to {target}, and there is no {file}.")
    return None if repository is None else f"{repository}/blob/main/{file}"
