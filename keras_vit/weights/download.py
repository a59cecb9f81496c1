"""Downloads: URL → local path. A file is fetched once, and it is the same file ever after.

What lives here: where a file lies on this machine, how it gets there, and the checks of its size
and hash. What does not: which files exist (`catalog.py`) and what is in them (`files.py`).

Places, in this order:
    1. `KERAS_VIT_WEIGHTS`, a directory of files that were fetched by other means. A file there is used in place and
       never changed. Catalog files lie there as `imagenet21k/ViT-B_16.npz` or, where that tells which file it is, as
       `ViT-B_16.npz`; any other URL as `<host>/<path>`.
    2. The cache, `<KERAS_HOME>/models/keras_vit/<host>/<path>`, where `KERAS_HOME` is `~/.keras` unless it is set.
       Beside each file lies `<file>.sha256`, written when the file is first used and compared ever after.
    3. The network. A download that ends early leaves nothing behind, and the next call starts again.
"""

import contextlib
import glob
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

from keras_vit.weights import catalog, files, hub
from keras_vit.weights.catalog import CatalogRow

_GOOGLE_STORAGE = "storage.googleapis.com"
_SCHEMES = ("https", "http", "gs", "file")
_OTHER_KINDS = (".json", ".txt", ".csv")  # what may lie beside weights
_USER = re.compile(r"(\w://)[^/?#\s]*@")
_QUERY = re.compile(
    r"(?<=[?&])(?!(?:alt|dl|download|raw|ref|revision|version)=)[^\s&=?'\")]*=?[^\s&'\")]*"
)
_ADDRESS = re.compile(r"(?:\w+://|with url: /)[^\s'\")]*\?[^\s'\")]*")
_CHUNK_BYTES = 2**20
_TIMEOUT_SECONDS = 30
_STALE_SECONDS = 24 * 3600


def fetch(source: CatalogRow | str, *, progress: bool = True) -> Path:
    """Return the local path of a published file, downloading it if need be.

    Args:
        source: A row of the catalog, or a URL: `https://`, `http://`, `gs://bucket/path`,
            `file://`, or `hf://owner/name@revision` for a repository of the Hugging Face Hub.
        progress: Whether a download shows a bar on standard error.

    Raises:
        ValueError: If the URL is malformed or the server has no such file, or if the file does not
            have the size or the hash that it should have.
        ConnectionError: If the server cannot be reached or breaks off. The message says which file
            to put where.
        OSError: If the cache cannot be written.

    Example:
        >>> fetch(catalog.lookup("ViT_B16", "sam"))  # doctest: +SKIP
        PosixPath('/home/me/.keras/models/keras_vit/storage.googleapis.com/vit_models/sam/ViT-B_16.npz')
    """
    if isinstance(source, str) and source.startswith(hub.SCHEME):
        return hub.fetch(source)
    url = https_url(source.url if isinstance(source, CatalogRow) else source)
    if urlsplit(url).scheme == "file":
        return _local_file(url)
    row = source if isinstance(source, CatalogRow) else catalog.by_file_name(url)
    offline = _offline_file(url, row)
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
    """Return the URL to ask: `gs://` becomes https, and the `+` in names of Google's files is
    percent-encoded.

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


def without_secrets(text: str) -> str:
    """Returns a text in which no URL shows its user, its password, or in its query what may be a
    signature.

    Example:
        >>> without_secrets("see https://me:secret@example.org/model.npz?download=1&token=secret")
        'see https://***@example.org/model.npz?download=1&***'
    """
    return _ADDRESS.sub(lambda found: _QUERY.sub("***", found[0]), _USER.sub(r"\1***@", text))


def cache_path(url: str) -> Path:
    """Return where a URL is cached. No two share a path, but for http and https of the same
    address.

    Example:
        >>> cache_path("gs://vit_models/sam/ViT-B_16.npz").parts[-5:]
        ('keras_vit', 'storage.googleapis.com', 'vit_models', 'sam', 'ViT-B_16.npz')
    """
    home = os.environ.get("KERAS_HOME") or os.path.join("~", ".keras")
    return Path(home).expanduser() / "models" / "keras_vit" / _sub_path(https_url(url))


def _sub_path(url: str) -> Path:
    """Return `<host>/<path>`. What is no plain name stays percent-encoded, so nothing leads upward
    or coincides.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]  # without a password
    names = [
        quote(unquote(name), safe="+=@ ") or "%" for name in (host, *parts.path[1:].split("/"))
    ]
    names = [name if name.strip(".") else name.replace(".", "%2E") for name in names]
    if parts.query:
        # Signed URLs have queries that are too long for a name.
        names.insert(-1, hashlib.sha256(parts.query.encode()).hexdigest()[:16])
    return Path(*names)


def _local_file(url: str) -> Path:
    path = Path(url2pathname(urlsplit(url).path))
    if not path.exists():
        raise FileNotFoundError(f"'{without_secrets(url)}' names '{path}', which does not exist.")
    return path


# --- the offline directory
# -----------------------------------------------------------------------------------------


def _offline_file(url: str, row: CatalogRow | None) -> Path | None:
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
    return _unsorted_file(root, row) if row else None


def _unsorted_file(root: Path, row: CatalogRow) -> Path | None:
    """Return the file that lies in no subdirectory, unless its size says that it is another one of
    that name.
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
# -------------------------------------------------------------------------------------------------


def _check(path: Path, row: CatalogRow | None) -> None:
    """Check a file that is already here."""
    again = "Delete it to download it again"
    wrong_size = _wrong_size(path, row)
    if wrong_size:
        raise ValueError(
            f"'{path}' {wrong_size}. {again}, or pass its path as `weights` to use it as it is."
        )
    try:
        # Also of a file that was here before: an older version may have kept a login page, and
        # somebody may have put half a file here.
        _check_kind(path, path)
    except ValueError as error:
        raise ValueError(
            f"{error} It is kept as '{path}': delete it to ask the server again."
        ) from error
    wrong_hash = _wrong_hash(path, _expected_hash(path, row))
    if wrong_hash:
        pin = _pin_path(path)
        raise ValueError(
            f"'{path}' has changed: its {wrong_hash}. {again}. If it was replaced on purpose, "
            f"delete '{pin}' as well."
        )


def _wrong_size(path: Path, row: CatalogRow | None) -> str | None:
    size = path.stat().st_size
    if row is None or _fits(size, row):
        return None
    return f"has {size} bytes, but {row.file} has {row.bytes} (give or take {row.bytes_tolerance})"


def _wrong_hash(path: Path, expected: str | None) -> str | None:
    if expected is None:
        return None
    digest = _sha256(path)
    return None if digest == expected else f"sha256 is {digest}, expected {expected}"


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _expected_hash(path: Path, row: CatalogRow | None) -> str | None:
    return (row and row.sha256) or _read_pin(path)


def _pin_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _read_pin(path: Path) -> str | None:
    """Return the hash that was pinned on first use; the file has the form that `sha256sum --check`
    reads.
    """
    pin = _pin_path(path)
    if not pin.exists():
        return None
    words = pin.read_text(encoding="utf-8").split()
    if not words or len(words[0]) != 64:
        raise ValueError(f"'{pin}' holds no sha256. Delete it, and the hash is pinned anew.")
    return words[0].lower()


def _pin(path: Path) -> None:
    # A cache that somebody else filled may be read-only here: then nothing can be remembered, and
    # nothing can change.
    with contextlib.suppress(OSError):
        if not _pin_path(path).exists():
            with files.replacing(_pin_path(path)) as stream:
                stream.write(f"{_sha256(path)}  {path.name}\n".encode())


# --- the network
# -----------------------------------------------------------------------------------------------------


def _download(url: str, target: Path, row: CatalogRow | None, progress: bool) -> None:
    """Download under a temporary name, check, and move into place."""
    advice = _advice(url, target, row)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale_parts(target)
        with files.replacing(target) as stream:
            _receive(url, stream, _Progress(target.name, progress), advice)
            _check_download(url, Path(stream.name), target, row)
    except OSError as error:
        # The network's errors are OSErrors too, but without a number.
        if error.errno is None or isinstance(error, ConnectionError | TimeoutError):
            what = (
                f"Cannot download {without_secrets(url)}: {without_secrets(str(error))}. {advice}"
            )
            # What is chained is printed too.
            raise ConnectionError(what) from (error if url == without_secrets(url) else None)
        hint = "Set KERAS_HOME to a directory that can be written and has room."
        raise OSError(
            error.errno, f"Cannot write '{target}': {error.strerror}. {hint} {advice}"
        ) from error


def _advice(url: str, target: Path, row: CatalogRow | None) -> str:
    directory = os.environ.get("KERAS_VIT_WEIGHTS") or "<directory>"
    offline = Path(directory) / (row.file if row else _sub_path(url))
    return (
        f"To go on without the network: fetch {without_secrets(url)} on another machine and put it "
        f"at '{target}', "
        f"or at '{offline}' with the environment variable KERAS_VIT_WEIGHTS set to {directory}."
    )


def _remove_stale_parts(target: Path) -> None:
    """Remove what processes of other machines left behind; a younger part may belong to a download
    that is going on.
    """
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
        # Uncompressed, so that the announced length is that of the file.
        "headers": {"Accept-Encoding": "identity"},
        "hooks": {"response": lambda response, **_: responses.append(response)},
    }
    try:
        pooch.HTTPDownloader(**settings)(url, stream, None)
    except OSError as error:
        status = responses[-1].status_code if responses else 0
        # The server works and will not give this file, now or later; but 408 and 429 say "later".
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
        raise ConnectionError(f"it broke off after {size} of {bar.total} bytes")


def _check_download(url: str, path: Path, target: Path, row: CatalogRow | None) -> None:
    """Check what arrived, still under its temporary name: without an announced length only the
    content tells.
    """
    lead = f"{without_secrets(url)} did not give the expected file, and nothing was kept: "
    try:
        _check_kind(path, target)
    except ValueError as error:
        raise ValueError(f"{lead}{error}") from error
    wrong_size = _wrong_size(path, row)
    if wrong_size:
        raise ValueError(
            f"{lead}it {wrong_size}. Try again later, or fetch it yourself. "
            f"{_advice(url, target, row)}"
        )
    wrong_hash = _wrong_hash(path, _expected_hash(target, row))
    if wrong_hash:
        pin = _pin_path(target)
        raise ValueError(
            f"{lead}its {wrong_hash} for '{target}'. If the publisher has replaced it, delete "
            f"'{pin}'."
        )


def _check_kind(path: Path, target: Path) -> None:
    """Weights may have any name, for a URL may end in /download; what else is wanted must have a
    name that says so.
    """
    if target.suffix not in _OTHER_KINDS:
        files.kind(path)


class _Progress:
    """What pooch drives while it downloads: it learns the announced length, and shows a bar if one
    is wanted.
    """

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
