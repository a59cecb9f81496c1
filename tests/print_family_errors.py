"""Prints a table of the largest differences from timm, Transformers and OpenCLIP.

    PYTHONPATH=.:tests:tests/weights python tests/print_family_errors.py

For each small random model of `family_peers.py`: tokens, pooled vector and logits, the largest of
four image sizes. Then tokens of whole models of timm at their native size.
"""

import tempfile
from pathlib import Path

import family_peers as peers
import keras
import numpy as np
import test_families as families
from torch_peers import import_timm

import keras_vit

# Row, model of timm, image size, options of our model.
WHOLE = (
    ("DINO_S16", "vit_small_patch16_224", 224, {}),
    ("DeiT_S16_distilled", "deit_small_distilled_patch16_224", 224, {}),
    ("DeiT3_S16", "deit3_small_patch16_224", 224, {}),
    ("CLIP_B32", "vit_base_patch32_clip_quickgelu_224", 224, {}),
    ("SigLIP_B16", "vit_base_patch16_siglip_224", 224, {"gelu": "exact"}),
    ("DINOv2_S14", "vit_small_patch14_dinov2", 518, {}),
    ("DINOv2_S14_reg4", "vit_small_patch14_reg4_dinov2", 518, {}),
    ("DINOv3_S16plus", "vit_small_plus_patch16_dinov3_qkvb", 256, {}),
)


def measure_case(package: str, case: peers.Case, folder: Path) -> list[str]:
    """Returns the largest errors of tokens, vector and logits over all sizes."""
    model = families._make(package, case)
    path = families._save(package, model, folder)
    errors = np.zeros(3)
    for size in (families.NATIVE, *families.SIZES):
        images = peers.images_of(size)
        resized = families._resize(package, case, model, size)
        tokens, vector, logits = families._answer(case, resized, images)
        pooling = {"pooling": case.pooling, **(case.options or {})}
        built = [families._load(case, path, size), families._load(case, path, size, **pooling)]
        if case.options is not None:
            built.append(families._load(case, path, size, logits))
        found = [
            families._error(ours, images, expected)
            for ours, expected in zip(built, (tokens, vector, logits), strict=False)
        ]
        errors[: len(found)] = np.maximum(errors[: len(found)], found)
    return [f"{error:.1e}" if error else "-" for error in errors]


def measure_whole(row: str, name: str, side: int, options: dict) -> float:
    """Returns the largest error of the tokens of a whole model of timm."""
    import timm
    import torch
    from safetensors.torch import save_file

    case = peers.Case(row, lambda size: None, lambda model, x: ())
    model = timm.create_model(name, num_classes=512 if row.startswith("CLIP") else 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight, x in model.named_parameters():
            scale, is_norm = 0.02 if x.ndim > 1 else 0.2, x.ndim == 1 and weight.endswith("weight")
            x.copy_(torch.randn(x.shape, generator=generator) * scale + is_norm)
    images = peers.images_of((side, side), count=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file({key: x.contiguous() for key, x in model.state_dict().items()}, path)
        ours = getattr(keras_vit, row)(
            include_top=False, weights=path, input_shape=(side, side, 3), **options
        )
    with torch.no_grad():
        expected = model.eval().forward_features(peers.pixels_for(case, images)).numpy()
    return np.abs(keras.ops.convert_to_numpy(ours(images)) - expected).max()


def main() -> None:
    import_timm()
    print(f"| package | model | tokens | vector | logits |\n|{'---|' * 5}")
    for package, cases in peers.ALL.items():
        for name, case in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                errors = measure_case(package, case, Path(folder))
            print(f"| {package} | {name} | {' | '.join(errors)} |", flush=True)
    for row, name, side, options in WHOLE:
        error = measure_whole(row, name, side, options)
        print(f"| timm | `{row}`: {name}, {side} pixels | {error:.1e} | - | - |", flush=True)


if __name__ == "__main__":
    main()
