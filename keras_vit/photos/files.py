"""Search for photos in folders, with the same rules for every command.

A photo is a file whose suffix is in `FORMATS`, in lower or upper case, at any depth below a folder.
Files of operating systems are ignored: hidden files and folders (`._*`, `.DS_Store`), `__MACOSX`,
`Thumbs.db`, `desktop.ini`. All other files are left out and reported with the reason. Links to
photos and folders are followed. No folder is read twice, so loops end.
"""

import os
from collections import deque
from pathlib import Path
from typing import NamedTuple

FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "WebP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "HEIC": (".heic", ".heif"),
}
SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)
_IGNORED = ("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini")


class LeftOut(NamedTuple):
    """A file or folder that is not read, and the reason."""

    path: Path
    reason: str


class Found(NamedTuple):
    """The photos in a folder, in the order of their names, and the files that are left out."""

    photos: list[Path]
    left_out: list[LeftOut]


def is_ignored(name: str) -> bool:
    """Returns whether a name is that of a system file or folder, which is neither read nor reported.

    Example:
        >>> [is_ignored(name) for name in ("._cat.jpg", "Thumbs.db", "cat.jpg")]
        [True, True, False]
    """
    return name.startswith(".") or name.lower() in _IGNORED


def is_photo(name: str) -> bool:
    """Returns whether a name has the suffix of a photo.

    Example:
        >>> is_photo("cat.JPG"), is_photo("cat.txt")
        (True, False)
    """
    return name.lower().endswith(SUFFIXES)


def walk(folder: str | os.PathLike) -> Found:
    """Finds the photos in a folder and its subfolders.

    Example:
        >>> Path("cats/2024").mkdir(parents=True)
        >>> _ = Path("cats/2024/1.jpg").write_bytes(b""), Path("cats/notes.txt").write_bytes(b"")
        >>> [path.as_posix() for path in walk("cats").photos], walk("cats").left_out[0].reason
        (['cats/2024/1.jpg'], 'not a photo by its suffix, .txt')
    """
    photos: list[str] = []
    left_out: list[tuple[str, str]] = []
    seen: set[tuple[int, int]] = set()
    # Targets of links are read last, so that each folder is reported under its real path.
    links = deque([os.fspath(folder)])
    while links:
        inside = [links.popleft()]
        while inside:
            here = inside.pop()
            try:
                facts = os.stat(here)
                with os.scandir(here) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError as error:
                left_out.append((here, f"the folder cannot be read: {error.strerror}"))
                continue
            if (facts.st_dev, facts.st_ino) in seen:
                left_out.append((here, "a folder that was already read under another path"))
                continue
            seen.add((facts.st_dev, facts.st_ino))
            for entry in entries:
                if is_ignored(entry.name):
                    continue
                kind = _classify(entry)
                if kind == "folder":
                    (links if entry.is_symlink() else inside).append(entry.path)
                elif kind:
                    left_out.append((entry.path, kind))
                elif is_photo(entry.name):
                    photos.append(entry.path)
                else:
                    suffix = os.path.splitext(entry.name)[1].lower()
                    left_out.append(
                        (
                            entry.path,
                            f"not a photo by its suffix, {suffix}" if suffix else "no suffix",
                        )
                    )
    photos.sort(key=lambda path: path.split(os.sep))
    left_out.sort(key=lambda pair: pair[0].split(os.sep))
    return Found(
        [Path(path) for path in photos], [LeftOut(Path(path), reason) for path, reason in left_out]
    )


def _classify(entry: os.DirEntry) -> str:
    """Returns "folder", "" for a file, or the reason why it is neither."""
    try:
        if entry.is_dir():
            return "folder"
        if entry.is_file():
            return ""
        os.stat(entry.path)
    except OSError as error:
        return f"a broken link: {error.strerror}" if entry.is_symlink() else str(error.strerror)
    return "neither a file nor a folder"
