"""Downloads: URL → local path, with a cache, and checks of size and hash.

A file is looked up in these places, in this order:
    1. `KERAS_VIT_WEIGHTS`, a directory of files that were downloaded by other means. They are used
       in place and never modified. The path of a catalog file is `imagenet21k/ViT-B_16.npz`, or
       `ViT-B_16.npz` if that is unambiguous; the path of any other URL is `<host>/<path>`.
    2. The cache, `<KERAS_HOME>/models/keras_vit/<host>/<path>`. `KERAS_HOME` defaults to
       `~/.keras`. The hash of each file is written to `<file>.sha256` at its first use, and checked
       at each later use.
    3. The network. An interrupted download is removed, and the next call starts again.
"""

import contextlib
import errno
import glob
import hashlib
import os
import time
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

from absl import logging

from keras_vit.weights import catalog, files, hub
from keras_vit.weights.catalog import CatalogRow
from keras_vit.weights.secrets import without_secrets

_GOOGLE_STORAGE = "storage.googleapis.com"
_SCHEMES = ("https", "http", "gs", "file")
_OTHER_KINDS = (".json", ".txt", ".csv")  # files that may accompany weights
_CHUNK_BYTES = 2**20
_TIMEOUT_SECONDS = 30
_STALE_SECONDS = 24 * 3600
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def fetch(source: CatalogRow | str, *, progress: bool = True) -> Path:
    """Return the local path of a published file. Download it if necessary.

    Args:
        source: A row of the catalog, or a URL: `https://`, `http://`, `gs://bucket/path`,
            `file://`, or `hf://owner/name@revision` for a repository of the Hugging Face Hub.
        progress: Whether to show a progress bar on standard error.

    Raises:
        ValueError: If the URL is malformed, the server has no such file, or the file has another
            size or hash than expected.
        ConnectionError: If the server is unreachable or the connection breaks. The message says
            where to put a file that was downloaded by other means.
        OSError: If the cache cannot be written.

    Example:
        >>> fetch(catalog.lookup("ViT_B16", "sam"))  # doctest: +SKIP
        PosixPath('/home/me/.keras/models/keras_vit/storage.googleapis.com/vit_models/sam/ViT-B_16.npz')
    """
    address = source.url if isinstance(source, CatalogRow) else source
    if address.startswith(hub.SCHEME):
        return hub.fetch(address)
    url = https_url(address)
    if urlsplit(url).scheme == "file":
        return _find_local_file(url)
    row = source if isinstance(source, CatalogRow) else catalog.by_file_name(url)
    offline = _find_offline_file(url, row)
    if offline:
        _check(offline, row)
        return offline
    cached = cache_path(url)
    if cached.exists():
        _check(cached, row)
    else:
        _download(url, cached, row, progress)
    _pin(cached)
    return cached


def https_url(url: str) -> str:
    """Return the URL to request: `gs://` becomes https, and `+` in Google's names becomes `%2B`.

    Example:
        >>> https_url("gs://vit_models/imagenet21k/R50+ViT-B_16.npz")
        'https://storage.googleapis.com/vit_models/imagenet21k/R50%2BViT-B_16.npz'
    """
    parts = urlsplit(url)
    names_host = bool(parts.netloc) or parts.scheme == "file"
    if parts.scheme not in _SCHEMES or not names_host or parts.path.endswith("/") or not parts.path:
        schemes = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        expected = f"Expected one that begins with {schemes} and ends in a name."
        raise ValueError(f"Not the URL of a file: '{without_secrets(url)}'. {expected}")
    if parts.scheme == "gs":
        return f"https://{_GOOGLE_STORAGE}/{parts.netloc}{quote(unquote(parts.path))}"
    if parts.netloc == _GOOGLE_STORAGE:
        return parts._replace(path=parts.path.replace("+", "%2B")).geturl()
    return url


def cache_path(url: str) -> Path:
    """Return the path at which a URL is cached. It is unique, except for http and https.

    Example:
        >>> cache_path("gs://vit_models/sam/ViT-B_16.npz").parts[-5:]
        ('keras_vit', 'storage.googleapis.com', 'vit_models', 'sam', 'ViT-B_16.npz')
    """
    home = os.environ.get("KERAS_HOME") or os.path.join("~", ".keras")
    return Path(home).expanduser() / "models" / "keras_vit" / _sub_path(https_url(url))


def _sub_path(url: str) -> Path:
    """Return `<host>/<path>` with special names percent-encoded.

    So no URL leads to a parent folder, and no two URLs have the same path.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]  # without user and password
    names = [
        quote(unquote(name), safe="+=@ ") or "%" for name in (host, *parts.path[1:].split("/"))
    ]
    names = [name if name.strip(".") else name.replace(".", "%2E") for name in names]
    if parts.query:
        # The queries of signed URLs are too long for a file name.
        names.insert(-1, hashlib.sha256(parts.query.encode()).hexdigest()[:16])
    return Path(*names)


def _find_local_file(url: str) -> Path:
    path = Path(url2pathname(urlsplit(url).path))
    if not path.exists():
        raise FileNotFoundError(
            f"The file '{path}' of '{without_secrets(url)}' does not exist. Correct the URL."
        )
    return path


# --- the offline directory


def _find_offline_file(url: str, row: CatalogRow | None) -> Path | None:
    directory = os.environ.get("KERAS_VIT_WEIGHTS")
    if not directory:
        return None
    root = Path(directory).expanduser()
    if not root.is_dir():
        raise ValueError(
            f"KERAS_VIT_WEIGHTS='{directory}' is not a directory. Correct it, or unset it."
        )
    certain = root / (row.file if row else _sub_path(url))
    if certain.is_file():
        return certain
    return _find_unsorted_file(root, row) if row else None


def _find_unsorted_file(root: Path, row: CatalogRow) -> Path | None:
    """Return the file in the directory itself, unless its size is that of another file.

    Several published files have the same name.
    """
    name = row.file.split("/")[1]
    path = root / name
    if not path.is_file():
        return None
    others = [other for other in catalog.files_named(name) if other.url != row.url]
    size = path.stat().st_size
    namesakes = [other.file for other in others if _fits(size, other)]
    if not namesakes:
        return path
    if not _fits(size, row):
        return None
    raise ValueError(
        f"'{path}' could be {row.file} or {' or '.join(namesakes)}. Move it to the subdirectory it "
        f"is from."
    )


def _fits(size: int, row: CatalogRow) -> bool:
    return row.bytes is None or abs(size - row.bytes) <= row.bytes_tolerance


# --- size and hash


def _check(path: Path, row: CatalogRow | None) -> None:
    """Check a file that is already here."""
    again = "Delete it to download it again"
    wrong_size = _describe_wrong_size(path, row)
    if wrong_size:
        raise ValueError(
            f"'{path}' {wrong_size}. {again}, or pass its path as `weights` to use it anyway."
        )
    try:
        # Check cached files too: older versions could store a login page, and a file that was
        # copied here may be incomplete.
        _check_kind(path, path)
    except ValueError as error:
        raise ValueError(
            f"{error} It is stored as '{path}'. Delete it to download it again."
        ) from error
    wrong_hash = _describe_wrong_hash(path, _find_expected_hash(path, row))
    if wrong_hash:
        pin = _pin_path(path)
        raise ValueError(
            f"'{path}' was changed: its {wrong_hash}. {again}. If you replaced it on purpose, "
            f"delete '{pin}' instead."
        )


def _describe_wrong_size(path: Path, row: CatalogRow | None) -> str | None:
    size = path.stat().st_size
    if row is None or _fits(size, row):
        return None
    return f"has {size} bytes, but {row.file} has {row.bytes} (plus or minus {row.bytes_tolerance})"


def _describe_wrong_hash(path: Path, expected: str | None) -> str | None:
    if expected is None:
        return None
    digest = _sha256(path)
    return None if digest == expected else f"sha256 is {digest}, expected {expected}"


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _find_expected_hash(path: Path, row: CatalogRow | None) -> str | None:
    return (row and row.sha256) or _read_pin(path)


def _pin_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _read_pin(path: Path) -> str | None:
    """Return the hash that was recorded at the first use, in the format of `sha256sum --check`."""
    pin = _pin_path(path)
    if not pin.exists():
        return None
    words = pin.read_text(encoding="utf-8").split()
    if not words or len(words[0]) != 64:
        raise ValueError(f"'{pin}' contains no sha256. Delete it to record the hash again.")
    return words[0].lower()


def _pin(path: Path) -> None:
    if _pin_path(path).exists():
        return
    try:
        with files.replacing(_pin_path(path)) as stream:
            stream.write(f"{_sha256(path)}  {path.name}\n".encode())
    except OSError as error:
        # A shared cache may be read-only: then the file cannot change either.
        if error.errno not in _READ_ONLY:
            logging.warning(
                "Cannot write '%s': %s. Changes of '%s' will not be noticed until a later use "
                "records its hash.",
                *(_pin_path(path), error.strerror or error, path),
            )


# --- the network


def _download(url: str, target: Path, row: CatalogRow | None, progress: bool) -> None:
    """Download to a temporary name, check, and rename."""
    advice = _make_advice(url, target, row)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale_parts(target)
        with files.replacing(target) as stream:
            _receive(url, stream, _Progress(target.name, progress), advice)
            _check_download(url, Path(stream.name), target, row)
    except OSError as error:
        # Errors of the network are OSErrors too, but without an error number.
        if error.errno is None or isinstance(error, ConnectionError | TimeoutError):
            what = (
                f"Cannot download {without_secrets(url)}: {without_secrets(str(error))}. {advice}"
            )
            # A chained error would be printed with its secrets.
            raise ConnectionError(what) from (error if url == without_secrets(url) else None)
        hint = "Set KERAS_HOME to a writable directory with enough space."
        raise OSError(
            error.errno, f"Cannot write '{target}': {error.strerror}. {hint} {advice}"
        ) from error


def _make_advice(url: str, target: Path, row: CatalogRow | None) -> str:
    directory = os.environ.get("KERAS_VIT_WEIGHTS") or "<directory>"
    offline = Path(directory) / (row.file if row else _sub_path(url))
    return (
        f"To work without the network, download {without_secrets(url)} on another machine and copy "
        f"it to '{target}', or to '{offline}' with the environment variable KERAS_VIT_WEIGHTS set "
        f"to {directory}."
    )


def _remove_stale_parts(target: Path) -> None:
    """Remove old partial files of other machines. A recent one may belong to a running download."""
    for part in target.parent.glob(f".partial-*-{glob.escape(target.name)}"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - part.stat().st_mtime > _STALE_SECONDS:
                part.unlink()


def _receive(url: str, stream: BinaryIO, bar: "_Progress", advice: str) -> None:
    import pooch

    responses: list[Any] = []
    settings: dict[str, Any] = {
        "progressbar": bar,
        "chunk_size": _CHUNK_BYTES,
        "timeout": _TIMEOUT_SECONDS,
        # Request no compression, so that Content-Length is the size of the file.
        "headers": {"Accept-Encoding": "identity"},
        "hooks": {"response": lambda response, **_: responses.append(response)},
    }
    try:
        pooch.HTTPDownloader(**settings)(url, stream, None)
    except OSError as error:
        status = responses[-1].status_code if responses else 0
        # Statuses 4xx are permanent, except 408 and 429, which ask to retry later.
        if 400 <= status < 500 and status not in (408, 429):
            what = f"The server answered {status} to {without_secrets(url)}. {advice}"
            raise ValueError(what) from (error if url == without_secrets(url) else None)
        raise
    finally:
        # pooch leaves the connection open when it fails.
        for response in responses:
            response.close()
        bar.close()
    stream.flush()
    size = os.fstat(stream.fileno()).st_size
    if bar.total and size != bar.total:
        raise ConnectionError(f"the connection ended after {size} of {bar.total} bytes")


def _check_download(url: str, path: Path, target: Path, row: CatalogRow | None) -> None:
    """Check a downloaded file, under its temporary name. Without Content-Length it may
    be cut off.
    """
    lead = f"{without_secrets(url)} did not return the expected file, and nothing was stored: "
    try:
        _check_kind(path, target)
    except ValueError as error:
        raise ValueError(f"{lead}{error}") from error
    wrong_size = _describe_wrong_size(path, row)
    if wrong_size:
        raise ValueError(
            f"{lead}it {wrong_size}. Try again later, or download it by other means. "
            f"{_make_advice(url, target, row)}"
        )
    wrong_hash = _describe_wrong_hash(path, _find_expected_hash(target, row))
    if wrong_hash:
        pin = _pin_path(target)
        raise ValueError(
            f"{lead}its {wrong_hash} for '{target}'. If the publisher has replaced the file, "
            f"delete '{pin}'."
        )


def _check_kind(path: Path, target: Path) -> None:
    """Check that a file contains weights, unless its suffix says otherwise.

    Weights may have any name, because a URL may end in /download.
    """
    if target.suffix not in _OTHER_KINDS:
        files.detect_kind(path)


class _Progress:
    """The progress bar for pooch, which sets `total` to the announced length."""

    def __init__(self, label: str, show: bool) -> None:
        self.total = 0
        self._label = label
        self._show = show
        self._bar: Any = None

    def update(self, count: int) -> None:
        from tqdm import tqdm

        if self._bar is None:
            total = self.total or None
            self._bar = tqdm(
                desc=self._label, total=total, unit="B", unit_scale=True, disable=not self._show
            )
        self._bar.update(count)

    def reset(self) -> None:
        if self._bar is not None:
            self._bar.reset()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
