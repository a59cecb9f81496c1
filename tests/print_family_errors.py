"""Prints a table of the largest differences from timm, Transformers and OpenCLIP.

    PYTHONPATH=.:tests:tests/weights python tests/print_family_errors.py
    PYTHONPATH=.:tests:tests/weights python tests/print_family_errors.py --sizes [ROW ...]

For each random model of `family_peers.py`: tokens, pooled vector and logits, the largest of four
image sizes: native, larger, smaller, rectangular. The models are small; with `--sizes`, they have
the width, depth and patches of each row of the table, or of the named ones.
"""

import dataclasses
import gc
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import family_peers as peers
import keras
import numpy as np
import test_families as families
from torch_peers import import_timm

from keras_vit.variants import FAMILY_VARIANTS, ViTVariant

# In which rows of one family differ.
_OF_SIZE = ("name", "source", "projection", "licence", "torch_gelu", "crop")
_OF_SIZE += tuple(field.name for field in dataclasses.fields(peers.Sizes))
# From a width on, so many blocks: all 40 of a "g" take 16 GB with the copies, those of 7B 100 GB.
_MOST_BLOCKS = {4096: 4, 1400: 8}
# From this width on, one model of each package, on images of at most 256 pixels.
_LARGE_WIDTH, _LARGE_SIDE = 1024, 256


def measure_case(
    package: str, case: peers.Case, folder: Path, sizes: peers.Sizes = peers.SMALL
) -> list[str]:
    """Returns the largest errors of tokens, vector and logits over all sizes of images."""
    model = families._make(package, case, sizes)
    path = families._save(package, model, folder)
    errors = np.zeros(3)
    for size in _list_image_sizes(sizes):
        images = peers.images_of(size)
        resized = families._resize(package, case, model, size, sizes)
        expected = families._answer(case, resized, images)
        pooled = {"pooling": case.pooling, **(case.options or {})}
        asked = [(None, {}), (None, pooled)]
        if case.options is not None:
            asked.append((expected[2], {}))
        for position, (logits, options) in enumerate(asked):
            ours = families._load(case, path, size, logits, sizes, **options)
            error = families._error(ours, images, expected[position])
            errors[position] = max(errors[position], error)
            del ours
            keras.backend.clear_session()
            gc.collect()
    return [f"{error:.1e}" if error else "-" for error in errors]


def _list_image_sizes(sizes: peers.Sizes) -> list[tuple[int, int]]:
    """Returns the native size, a larger, a smaller and a rectangular one."""
    side, patch = sizes.image_size, sizes.patch_size
    if sizes == peers.SMALL:
        return [families.NATIVE, *families.SIZES]
    return [
        (side, side),
        (side + 2 * patch,) * 2,
        (side // 2 // patch * patch,) * 2,
        (side // 2 // patch * patch, side),
    ]


def list_whole() -> Iterator[tuple[str, str, peers.Case, peers.Sizes]]:
    """Yields package, description, case and sizes of each row that a package can build."""
    for row in FAMILY_VARIANTS.values():
        is_large = row.width >= _LARGE_WIDTH
        side = min(row.image_size, _LARGE_SIDE) if is_large else row.image_size
        sizes = dataclasses.replace(
            peers.Sizes.of(row),
            image_size=side // row.patch_size * row.patch_size,
            depth=next(
                (most for width, most in _MOST_BLOCKS.items() if row.width >= width), row.depth
            ),
        )
        words = f"`{row.name}`, {sizes.depth} blocks, {sizes.image_size} pixels"
        for package, cases in peers.ALL.items():
            found = [
                (package, f"{words}: {name}", case, sizes)
                for name, case in cases.items()
                if _find_family(FAMILY_VARIANTS.get(case.row)) == _find_family(row)
            ]
            yield from found[:1] if is_large else found


def _find_family(row: ViTVariant | None) -> dict | None:
    if row is None:
        return None
    family = dataclasses.asdict(row)
    return {key: value for key, value in family.items() if key not in _OF_SIZE}


def main(arguments: list[str]) -> None:
    import_timm()
    print(f"| package | model | tokens | vector | logits |\n|{'---|' * 5}")
    whole = arguments[:1] == ["--sizes"]
    small = (
        (package, name, case, peers.SMALL)
        for package, cases in peers.ALL.items()
        for name, case in cases.items()
    )
    for package, name, case, sizes in list_whole() if whole else small:
        if arguments[1:] and not any(f"`{row}`" in name for row in arguments[1:]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            errors = measure_case(package, case, Path(folder), sizes)
        print(f"| {package} | {name} | {' | '.join(errors)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
