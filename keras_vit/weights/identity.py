"""Describes a checkpoint file for `verify`: its origin, layout, model, size and hash.

`model_file.py` reads and converts the file.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_vit.variants import VARIANTS, ResNetVariant, ViTVariant
from keras_vit.weights import catalog, dialects, download, files, layouts, model_file

Facts = list[tuple[str, str]]

_MIB = 2**20

# Properties of Google's files that their names show. Wrappers may be nested.
_MARKS = (
    (r"opt/target/.*", "in an optimizer's state (opt/target/)"),
    (r"(opt/target/)?params/.*", "in params/"),
    (r"(.*/)?img/.*", "beside a text tower (img/)"),
    (r"(.*/)?Transformer/encoderblock/.*", "blocks stacked along the first axis"),
    (r"(.*/)?encoderblock(_\d+)?/MlpBlock_3/.*", "modules counted as before linen"),
    (r"(.*/)?encoderblock(_\d+)?/(row/)?MlpBlock_0/.*", "modules counted as in linen"),
    (r"(.*/)?(encoderblock(_\d+)?|unit\d+)/row/.*", "axial attention under keras_vit's names"),
    (r"(params/|img/|opt/target/)*pos_embedding", "position table at the root"),
    (r"(.*/)?resnet/root_block/.*", "names of BiT"),
    (r"(.*/)?standardized_conv2d_\d+/.*", "convolutions numbered"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """The description of a file, from its arrays, size and hash.

    Attributes:
        path: Local path.
        model: Name of the model with these shapes.
        facts: Pairs of label and text, for a report.
        doubts: Descriptions of problems; empty if there are none.
        canonical: Arrays under canonical names.
    """

    path: Path
    model: str
    facts: Facts
    doubts: list[str]
    canonical: dict[str, np.ndarray]


def examine(file: str, model: str | None = None) -> Identity:
    """Examines a file that is given by its path, its URL or a tag.

    Args:
        file: Path, URL, or a tag of the catalog.
        model: Name of the model of a tag.

    Raises:
        ValueError: If the file is damaged, has an unknown layout, or matches no model of the table.
        OSError: If the file cannot be downloaded or read.

    Example:
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classes=10)
        >>> keras_vit.save_checkpoint(model, "ti16.npz")
        >>> examine("ti16.npz").model
        'ViT_Ti16'
    """
    path, row = _find(file, model)
    expected = model or (row.model if row else None)
    arrays, canonical, layout = _read(path, VARIANTS.get(expected or ""))
    identified = layouts.identify(canonical, expected)
    facts, doubts = _check_size_and_hash(path, row)
    if row and row.model != identified:
        doubts.append(f"{row.file} is a file of {row.model}")
    facts += [
        ("integrity", _describe_integrity(path)),
        ("layout", layout),
        ("arrays", _describe_counts(arrays, canonical)),
        ("model", f"{identified}, {_how_identified(identified, model)}"),
    ]
    return Identity(path=path, model=identified, facts=facts, doubts=doubts, canonical=canonical)


def _describe_integrity(path: Path) -> str:
    if files.has_checksums(path):
        return "each array equals its checksum in the file"
    return "no checksums in the file: changed weights are not found unless a hash is known"


def _how_identified(identified: str, named: str | None) -> str:
    return "as named; the shapes match" if identified == named else "identified by the shapes"


def read_canonical(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file under canonical names, whatever its layout.

    Raises:
        ValueError: If the file is damaged or of an unknown layout.
    """
    return _read(path)[1]


def _find(file: str, model: str | None) -> tuple[Path, catalog.CatalogRow | None]:
    """Returns the local path of a file, and its row of the catalog if its name is unambiguous."""
    if model is not None:
        catalog.list_weights(model)  # raises an error that suggests names for an unknown model
    path = Path(file)
    if "://" in file:
        row = catalog.by_file_name(file)
        return download.fetch(row or file), row
    if path.exists():
        return files.find_file(path), catalog.by_file_name(file)
    if model is None:
        raise ValueError(
            f"There is no file '{file}'. If it is a tag of the catalog, name its model, for "
            "example --model=ViT_B16."
        )
    row = catalog.lookup(model, file)
    return download.fetch(row), row


def _read(
    path: Path, variant: ViTVariant | ResNetVariant | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], str]:
    """Returns the declared arrays, the arrays under canonical names, and the name of the layout."""
    found = model_file.read(path, variant)
    layout = "Keras weights" if found.dialect == "keras" else _describe_layout(found.claimed)
    return found.claimed, found.canonical(), layout


def _describe_layout(arrays: Mapping[str, np.ndarray]) -> str:
    dialect = dialects.detect(arrays)
    if dialect != "google":
        return {"timm": "timm", "huggingface": "Hugging Face", "openclip": "OpenCLIP"}[dialect]
    names = [name for name in arrays if not re.match(r"opt/(?!target/)", name)]
    marks = [text for pattern, text in _MARKS if any(re.fullmatch(pattern, name) for name in names)]
    if any(re.search(r"(^|/)gn\w*/scale$", name) and x.ndim == 4 for name, x in arrays.items()):
        marks.append("group norms of shape (1, 1, 1, C)")
    return ", ".join(["Google", *marks])


def _describe_counts(arrays: Mapping[str, np.ndarray], canonical: Mapping[str, np.ndarray]) -> str:
    parameters = sum(x.size for x in canonical.values())
    others = sum(x.size for x in arrays.values()) - parameters
    text = f"{len(arrays):,} with {parameters:,} parameters"
    return text + (
        f", and {others:,} other numbers (of an optimizer, a text tower)" if others > 0 else ""
    )


def _check_size_and_hash(path: Path, row: catalog.CatalogRow | None) -> tuple[Facts, list[str]]:
    size, doubts = path.stat().st_size, []
    text = f"{size:,} bytes ({size / _MIB:.1f} MiB)"
    if row and row.bytes is not None:
        text += f"; {row.file} is listed with {row.bytes / _MIB:.1f} MiB"
        if abs(size - row.bytes) > row.bytes_tolerance:
            doubts.append(f"the size differs from that of {row.file}")
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    facts = [("size", text), ("sha256", digest)]
    expected = {"published": row and row.sha256, "pinned on first use": _read_pin(path)}
    known = {whose: other for whose, other in expected.items() if other}
    for whose, other in known.items():
        facts.append(
            ("", f"equal to the one {whose}" if other == digest else f"the one {whose}: {other}")
        )
        doubts += [] if other == digest else [f"the sha256 differs from the one {whose}"]
    return facts + ([] if known else [("", "no published or pinned hash to compare")]), doubts


def _read_pin(path: Path) -> str | None:
    """Reads the hash that `download.py` recorded next to the file."""
    pin = path.with_name(f"{path.name}.sha256")
    return (
        next(iter(pin.read_text(encoding="utf-8").lower().split()), None) if pin.exists() else None
    )
