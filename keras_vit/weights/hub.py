"""`hf://owner/name@revision` → a folder on this machine, by `huggingface_hub`.

The cache, the token (`HF_TOKEN`, `hf auth login`), the mirror (`HF_ENDPOINT`) and the offline mode
(`HF_HUB_OFFLINE=1`) are those of `huggingface_hub`.
"""

import os
import re
from pathlib import Path

from keras_vit.weights import configs, files, shards
from keras_vit.weights.secrets import without_secrets

SCHEME = "hf://"
_ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([^@\s]+))?")
_CONFIG, _PREPROCESSOR = "config.json", "preprocessor_config.json"
_OPEN_CLIP, _PROCESSOR = "open_clip_config.json", "processor_config.json"
_DESCRIPTIONS = (_CONFIG, _PROCESSOR, _PREPROCESSOR, _OPEN_CLIP)
_DEFAULT_REVISION = "main"


def fetch(address: str) -> Path:
    """Returns the folder of a repository, with its weights and its descriptions.

    Only one form of the weights is downloaded: the first that `keras_vit.weights.files` would
    read. All files are of one commit.

    Args:
        address: `hf://owner/name`, or `hf://owner/name@revision`: a branch, a tag or a commit.

    Raises:
        ImportError: If `huggingface_hub` is not installed.
        ValueError: If the address is malformed, or if there is no such repository or revision, or
            no weights in it.
        PermissionError: If the repository is gated and the token has no access.
        ConnectionError: If the hub cannot be reached and the cache has no copy.
        OSError: If the cache cannot be written.

    Example:
        >>> fetch("hf://google/vit-base-patch16-224@main")  # doctest: +SKIP
        PosixPath('/home/me/.cache/huggingface/hub/models--google--vit-base-patch16-224/snapshots/...')
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(
            f"Not the address of a repository: '{without_secrets(address)}'. Expected hf://owner/name or "
            f"hf://owner/name@revision."
        )
    repository, revision = match[1], match[2] or _DEFAULT_REVISION
    weights = _download_weights(address, repository, revision)
    # A branch may move during the download, a commit cannot. The name of the folder is the commit.
    commit = weights.parent.name
    if weights.name.endswith(files.INDEX_SUFFIX):
        for name in sorted(set(shards.read_index(weights).values())):
            if _download(address, repository, commit, name) is None:
                raise ValueError(f"{address} lists the file {name} and does not have it.")
    for name in _DESCRIPTIONS:
        try:
            _download(address, repository, commit, name)
        except ConnectionError:
            # `hf download` does not record which files a commit does not have.
            if _is_needed(name, weights):
                raise
    return weights.parent


def _is_needed(name: str, weights: Path) -> bool:
    """Returns whether a description may contain what `config.json` does not.

    That of OpenCLIP describes its own weights alone, the config of timm has the pixels, and either
    of the two files of a processor has them.
    """
    if name == _PROCESSOR:
        return False
    if not weights.with_name(_CONFIG).exists():
        return True
    if name == _OPEN_CLIP:
        return weights.name.startswith("open_clip")
    has_pixels = configs.is_timm(weights) or configs.has_processor(weights)
    return name != _PREPROCESSOR or not has_pixels


def _download_weights(address: str, repository: str, revision: str) -> Path:
    """Downloads the weights, or the index of their files."""
    for name in files.IN_DIRECTORY:
        try:
            path = _download(address, repository, revision, name)
        except ConnectionError:
            # Each try takes many seconds, and another form of the weights may be in the cache.
            path = _find_cached(repository, revision)
            if path is None:
                raise
        if path is not None:
            return path
    raise ValueError(
        f"{address} has no weights that can be read: none of {', '.join(files.IN_DIRECTORY)}."
    )


def _find_cached(repository: str, revision: str) -> Path | None:
    import huggingface_hub

    found = (
        huggingface_hub.try_to_load_from_cache(repository, name, revision=revision)
        for name in files.IN_DIRECTORY
    )
    return next((Path(path) for path in found if isinstance(path, str)), None)


def _download(address: str, repository: str, revision: str, name: str) -> Path | None:
    """Returns the path of a file, from the cache where it is there; None if there is no such file."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        # Not by `keras_vit.extras`, which imports what `import keras_vit` does not need.
        raise ImportError(
            f"{address} needs huggingface_hub: pip install huggingface_hub ({error})"
        ) from error
    try:
        return Path(
            huggingface_hub.hf_hub_download(
                repository, name, revision=revision, endpoint=os.environ.get("HF_ENDPOINT")
            )
        )
    except errors.LocalEntryNotFoundError as error:
        # The cache also records which files a commit does not have.
        known = huggingface_hub.try_to_load_from_cache(repository, name, revision=revision)
        if known is not None and not isinstance(known, str):
            return None
        raise ConnectionError(
            f"{address} cannot be downloaded, and the cache has no {name}: {_take_first_line(error)} Check "
            f"the connection, HF_ENDPOINT and HF_HUB_OFFLINE."
        ) from error
    except errors.EntryNotFoundError:
        return None
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{address} is gated: its owner grants access on its page on the hub. Request it there, "
            f"then log in with `hf auth login`, or set HF_TOKEN."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"There is no repository '{repository}', or it is private. Check the name. For a "
            f"private one, log in with `hf auth login`, or set HF_TOKEN."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(
            f"The repository '{repository}' has no revision '{revision}'. Name a branch, a tag or a "
            f"commit that its page on the hub lists."
        ) from error
    except errors.HfHubHTTPError as error:
        raise ConnectionError(
            f"{address} cannot be downloaded: {_take_first_line(error)}"
        ) from error


def _take_first_line(error: Exception) -> str:
    """Returns the first line of a message of the hub, as a sentence."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return f"{line.rstrip('.')}."
