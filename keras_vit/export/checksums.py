"""SHA-256 of every file of an export, in the format of `sha256sum`.

To check the files without running them:

    cd VERSION && sha256sum -c SHA256SUMS                  TFLite, ONNX, OpenVINO
    cd VERSION && sha256sum -c assets.extra/SHA256SUMS     SavedModel
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from keras_vit.export.metadata import CHECKSUMS_FILE as FILE
from keras_vit.export.metadata import facts_folder

MODEL_SUFFIXES = (".tflite", ".onnx", ".xml")  # each of these files is checked separately
_BLOCK = 2**20


def write_checksums(version: Path, place: Path) -> None:
    """Writes the checksums of all files of a version; the last step before it is published.

    Args:
        version: Folder of the version.
        place: Folder of the list, inside the version.
    """
    lines = [
        f"{_hash_file(path)}  {path.relative_to(version).as_posix()}\n"
        for path in sorted(_find_files(version))
    ]
    (place / FILE).write_text("".join(lines), encoding="utf-8")


def has_checksums(export: Path) -> bool:
    """Returns whether a SavedModel (a folder) or a file has a list of checksums."""
    return (facts_folder(export) / FILE).exists()


def listed_models(version: Path) -> list[Path]:
    """Returns the model files in the list of a version, including those that are now missing."""
    try:
        names = [Path(name) for name in _read(version)]
    except (OSError, ValueError):
        return []
    return [
        version / name for name in names if len(name.parts) == 1 and name.suffix in MODEL_SUFFIXES
    ]


def damage(export: Path) -> list[str]:
    """Lists the files that differ from their checksums; empty if none has changed.

    Other models in the same folder are ignored, since each is checked separately. Hidden files are
    ignored too.

    Args:
        export: Folder of a SavedModel, or a file.

    Example:
        >>> Path("labels.txt").write_text("cat"), write_checksums(Path("."), Path("."))
        (3, None)
        >>> Path("labels.txt").write_text("cow"), damage(Path("model.onnx"))
        (3, ['labels.txt is changed'])
    """
    version = export if export.is_dir() else export.parent
    try:
        expected = _read(facts_folder(export))
    except (OSError, ValueError) as error:
        return [f"{FILE} cannot be read: {error}"]
    found = {path.relative_to(version).as_posix(): path for path in _find_files(version)}
    problems = []
    for name in sorted({*expected, *found}):
        if _belongs_to_another(Path(name), export):
            continue
        if name not in found:
            problems.append(f"{name} is missing")
        elif name not in expected:
            problems.append(f"{name} was added")
        elif _hash_file(found[name]) != expected[name]:
            problems.append(f"{name} is changed")
    return problems


def _find_files(version: Path) -> Iterator[Path]:
    paths = (path for path in version.rglob("*") if not path.is_dir() and path.name != FILE)
    return (
        path
        for path in paths
        if not any(part.startswith(".") for part in path.relative_to(version).parts)
    )


def _read(place: Path) -> dict[str, str]:
    """Returns a dictionary from file name to checksum."""
    lines = (place / FILE).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return {name: checksum for checksum, name in map(_parse_line, lines)}


def _parse_line(line: str) -> tuple[str, str]:
    """Splits a line into checksum and file name."""
    checksum, separator, name = line.partition("  ")
    if not separator or not name or len(checksum) != 64:
        raise ValueError(f"expected lines '<sha256>  <file>', received {line[:100]!r}")
    return checksum, name


def _belongs_to_another(name: Path, export: Path) -> bool:
    models = (*MODEL_SUFFIXES, ".bin") if export.suffix == ".xml" else MODEL_SUFFIXES
    return len(name.parts) == 1 and name.suffix in models and name.stem != export.stem


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
