"""Checkpoints over several files: an index names the file of each array.

Source: huggingface/huggingface_hub, serialization (`*.index.json` with a `weight_map`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_vit.weights import metadata as facts
from keras_vit.weights import tensorflow_names
from keras_vit.weights.entries import Entry
from keras_vit.weights.refusal import join_first, make_error

Reader = Callable[[Path], tuple[list[Entry], dict[str, Any]]]

_MAX_INDEX_BYTES = 2**24
_ADVICE = "Download the whole folder again."


def list_entries(index: Path, read: Reader) -> tuple[list[Entry], dict[str, Any]]:
    """Returns the arrays of all files that an index names, unread, and their metadata.

    Args:
        index: Such as `model.safetensors.index.json`; the files are in its folder.
        read: Returns the arrays of one of the files, unread, and its metadata.

    Raises:
        ValueError: If the index is damaged, a file is missing, or index and files disagree.
    """
    file_of = {_name_of(name): file for name, file in read_index(index).items()}
    found: list[Entry] = []
    metadata: dict[str, Any] = {}
    for name in sorted(set(file_of.values())):
        path = index.with_name(name)
        if not path.is_file():
            raise make_error(
                index, f"it names the file {join_first([name])}, which is missing", _ADVICE
            )
        part, known = read(path)
        found += part
        metadata |= known
        strange = [entry.name for entry in part if file_of.get(entry.name) != name]
        if strange:
            raise make_error(
                index, f"it does not list {join_first(strange)} as arrays of {name}", _ADVICE
            )
    missing = sorted(file_of.keys() - {entry.name for entry in found})
    if missing:
        raise make_error(
            index, f"it lists {join_first(missing)}, which its files do not hold", _ADVICE
        )
    return found, metadata


def _name_of(name: str) -> str:
    """Returns the name of an array as its file gives it."""
    return tensorflow_names.translate_name(tensorflow_names.drop_model(name))


def read_index(index: Path) -> dict[str, str]:
    """Returns {name of an array: name of its file}, as an index says.

    Raises:
        ValueError: If the index is damaged.
    """
    if index.stat().st_size > _MAX_INDEX_BYTES:
        raise make_error(
            index, f"it has {index.stat().st_size} bytes, more than any index", _ADVICE
        )
    try:
        content = facts.parse(index.read_text(encoding="utf-8"))
    except ValueError as error:
        raise make_error(
            index, f"it is not JSON ({join_first([str(error)[:200]])})", _ADVICE
        ) from error
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not found:
        raise make_error(index, "it has no `weight_map`", _ADVICE)
    strange = [
        f"{name}: {ascii(file)[:60]}"
        for name, file in found.items()
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", "..")
    ]
    if strange:
        raise make_error(
            index, f"it names files outside its folder ({join_first(strange)})", _ADVICE
        )
    return found
