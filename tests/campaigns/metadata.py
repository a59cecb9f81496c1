"""Random metadata of every type and value: each is used as it says, or refused in one sentence.

    python tests/campaigns/metadata.py --seed=0 --count=200

Metadata are written into npz files (with and without checksum), safetensors, Hugging Face configs
and .weights.h5 files, past the package's own writers. What is valid is decided here, apart from the
package. It holds if valid metadata load with exactly their values, and others, or an argument
`checkpoint_grid` of that kind, raise a ValueError of one line. One in twenty models is built and
called: its numbers must be finite.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

import keras_vit
from keras_vit.variants import VIT_VARIANTS
from keras_vit.weights import files, source

ROW = replace(
    VIT_VARIANTS["ViT_Ti16"], name="small", patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=32
)
PLACES = ("npz", "npz without a checksum", "safetensors", "config", "h5", "argument")
TRUE = {
    "grid": [2, 8],
    "image_size": [16, 64],
    "gelu": "exact",
    "layer_norm_epsilon": 1e-5,
    "num_heads": 2,
}
GELUS = {"gelu": "exact", "gelu_new": "tanh"}  # as transformers names them
INTEGERS = (0, 1, 2, 3, 4, 8, 16, 64, 8192, 8193, -1, -8, 2**31, 2**63, 10**400)
FLOATS = (
    0.0,
    -0.0,
    1e-12,
    1e-6,
    1e-5,
    0.5,
    1.0,
    -1e-6,
    1e-38,
    1e-46,
    1e308,
    2.0,
    math.nan,
    math.inf,
    -math.inf,
)
TEXTS = (
    "",
    "tanh",
    "exact",
    "Tanh",
    "relu",
    "2",
    "[2, 8]",
    "2x8",
    "1e-6",
    "\0",
    "\n",
    "é",
    "🙂",
    "a" * 10_000,
)


# ---- metadata


def anything(rng, depth=0):
    """A value of any type of JSON."""
    kinds = [
        lambda: INTEGERS[rng.integers(len(INTEGERS))],
        lambda: FLOATS[rng.integers(len(FLOATS))],
        lambda: TEXTS[rng.integers(len(TEXTS))],
        lambda: (None, True, False)[rng.integers(3)],
        lambda: [
            int(number) for number in rng.choice([0, 1, 2, 4, 8, 16, 64, 8192, -2], rng.integers(4))
        ],
        lambda: list(TRUE.values())[rng.integers(len(TRUE))],
        lambda: [anything(rng, depth + 1) for _ in range(rng.integers(4))] if depth < 3 else [],
        lambda: {"a": anything(rng, depth + 1)} if depth < 3 else {},
    ]
    return kinds[rng.integers(len(kinds))]()


def some_metadata(rng):
    """True facts, of which a few are left out, and a few are anything."""
    metadata = {key: value for key, value in TRUE.items() if rng.integers(8)}
    for key in rng.choice([*TRUE, "note"], int(rng.integers(1, 3)), replace=False):
        metadata[str(key)] = anything(rng)
    return metadata


def is_pair(value):
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(n) is int and 1 <= n <= 8192 for n in value)
    )


def is_valid(key, value):
    """What each key may be, said again."""
    if key in ("grid", "image_size"):
        return is_pair(value)
    if key == "gelu":
        return value in ("tanh", "exact") and isinstance(value, str)
    if key == "layer_norm_epsilon":
        return type(value) is float and 2**-126 <= value < 1
    if key == "num_heads":
        return type(value) is int and 1 <= value <= 8192
    return True


def fits_model(metadata):
    """Whether what is valid by itself is true of the model: 16 positions, two heads, patches of 8
    pixels.
    """
    rows, columns = metadata.get("grid", [4, 4])
    if rows * columns != 16 or metadata.get("num_heads", 2) != 2:
        return False
    height, width = metadata.get("image_size", [8 * rows, 8 * columns])
    if height % 8 or width % 8:
        return False
    cells = (height // 8, width // 8)
    contradicts = cells != (rows, columns) and (
        cells[0] * cells[1] == 16 or cells[0] * cells[1] > 64 * 16
    )
    return not ("grid" in metadata and contradicts)


# ---- files


def write(place, folder, metadata, arrays):
    """Writes a file with these metadata, past the checks of the package. Returns its path."""
    text = json.dumps(metadata).encode()
    path = folder / "model"
    if place.startswith("npz"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.comment = text[:65535]
            for name, array in arrays["google"].items():
                member = zipfile.ZipInfo(f"{name}.npy")
                if place == "npz":
                    member.comment = b"metadata crc32 %08x" % zlib.crc32(text[:65535])
                with archive.open(member, "w") as target:
                    np.lib.format.write_array(target, array)
    elif place == "safetensors":
        import safetensors.numpy

        safetensors.numpy.save_file(
            arrays["timm"], path, {key: json.dumps(value) for key, value in metadata.items()}
        )
    elif place == "config":
        import safetensors.numpy

        path.mkdir()
        safetensors.numpy.save_file(arrays["huggingface"], path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(metadata))
    else:
        import h5py

        shutil.copy(arrays["h5"], path)
        with h5py.File(path, "r+") as file:
            places = []
            file.visit(
                lambda name: places.append(name) if name.endswith("vars/constants") else None
            )
            for name in places:
                del file[name]
                file[name] = np.frombuffer(b"%08x %s" % (zlib.crc32(text), text), np.uint8)
    return path


def as_config(rng, metadata):
    """The same facts in the words of Hugging Face, and what they mean here; or None if they mean
    nothing valid.
    """
    activations = {"tanh": "gelu_new", "exact": "gelu"}
    gelu = metadata.get("gelu", "tanh")
    config = {
        "hidden_act": activations.get(gelu, gelu) if isinstance(gelu, str) else gelu,
        "layer_norm_eps": metadata.get("layer_norm_epsilon"),
        "num_attention_heads": metadata.get("num_heads"),
        "image_size": metadata.get("image_size"),
        "patch_size": 8 if rng.integers(4) else anything(rng),
    }
    return {key: value for key, value in config.items() if value is not None or rng.integers(2)}


def meaning_of_config(config):
    if not config.keys() & {"hidden_act", "layer_norm_eps", "num_attention_heads"}:
        return {}  # of another kind of models
    size, patch = config.get("image_size"), config.get("patch_size")
    size = [size, size] if type(size) is int and 1 <= size <= 8192 else size
    named = {
        "layer_norm_epsilon": config.get("layer_norm_eps"),
        "num_heads": config.get("num_attention_heads"),
    }
    named |= {"image_size": size}
    known = {key: value for key, value in named.items() if value is not None}
    if "hidden_act" in config:
        if not isinstance(config["hidden_act"], str) or config["hidden_act"] not in GELUS:
            return None
        known["gelu"] = GELUS[config["hidden_act"]]
    if not all(is_valid(key, value) for key, value in known.items()):
        return None
    if patch is not None and size is not None:
        patches = [patch, patch] if type(patch) is int and 1 <= patch <= 8192 else patch
        if not is_pair(patches) or any(
            side < step for side, step in zip(size, patches, strict=True)
        ):
            return None
        known["grid"] = [side // step for side, step in zip(size, patches, strict=True)]
    return known


# ---- judging


def judge(rng, place, folder, arrays):
    """Returns ("held" | "fell", why)."""
    if place == "argument":
        grid = anything(rng)
        return judge_error(
            lambda: keras_vit.application(ROW)(
                weights=None, input_shape=(16, 64, 3), checkpoint_grid=grid
            ),
            is_pair(grid) or grid is None or "nothing",
            grid,
        )
    metadata = some_metadata(rng)
    expected = metadata if all(is_valid(key, value) for key, value in metadata.items()) else None
    if place == "config":
        metadata = as_config(rng, metadata)
        expected = meaning_of_config(metadata)
    path = write(place, folder, metadata, arrays)
    valid = expected is not None
    found = []
    # A valid grid that the table is not of is refused when names are known; other facts with the
    # model.
    verdict, why = judge_error(
        lambda: found.append(source.load(source.find("small", path, 10_000))),
        (valid and _fits_table(place, expected)) or (None if valid else "nothing"),
        metadata,
    )
    if verdict == "fell" or not found:
        return verdict, why
    wrong = differences(expected, found[0])
    if wrong:
        return "fell", f"{wrong} of {json.dumps(metadata)[:300]}"
    return build(path, expected) if rng.integers(20) == 0 else (verdict, why)


def _fits_table(place, metadata):
    """timm's and Hugging Face's kernels have no axis of heads, and no row of the table is of this
    width.
    """
    if place in ("safetensors", "config") and "num_heads" not in metadata:
        return False
    return math.prod(metadata.get("grid", [4, 4])) == 16 and metadata.get("num_heads", 2) == 2


def judge_error(call, may_pass, what):
    """Calls. `may_pass`: True, it must; None or False, either; "nothing", it must not."""
    try:
        call()
    except ValueError as error:
        message = str(error)
        if "\n" in message or not message.isprintable() or len(message) > 1500:
            return "fell", f"the message is not one sentence: {message[:300]!r}"
        return (
            ("fell", f"refused, though it is valid: {message[:300]}")
            if may_pass is True
            else ("held", "refused")
        )
    except Exception as error:
        return "fell", f"{type(error).__name__}: {str(error)[:200]} of {str(what)[:300]}"
    return ("fell", f"accepted {str(what)[:300]}") if may_pass == "nothing" else ("held", "used")


def differences(expected, found):
    mine = {
        "grid": found.grid and list(found.grid),
        "image_size": found.image_size and list(found.image_size),
        "gelu": found.gelu,
        "layer_norm_epsilon": found.norm_epsilon,
        "num_heads": found.num_heads,
    }
    return [
        f"{key} is {mine[key]}" for key in mine if key in expected and mine[key] != expected[key]
    ]


def build(path, expected):
    options = {} if "image_size" in expected else {"input_shape": (16, 64, 3)}
    found = []
    verdict, why = judge_error(
        lambda: found.append(keras_vit.application(ROW)(weights=path, classes=5, **options)),
        None,
        expected,
    )
    if not found:
        return verdict, why
    (model,) = found
    if not fits_model(expected):
        return "fell", f"built of {expected}"
    block, size = model.get_layer("encoderblock_0"), model.input_shape[1:3]
    if block.gelu != expected.get("gelu", block.gelu) or block.norm_epsilon != expected.get(
        "layer_norm_epsilon", block.norm_epsilon
    ):
        return "fell", f"another block of {expected}"
    numbers = (
        model.predict_on_batch(np.zeros((1, *size, 3), "float32"))
        if max(size) <= 128
        else np.zeros(1)
    )
    return (
        ("held", "built")
        if np.isfinite(numbers).all()
        else ("fell", f"a model of NaN of {expected}")
    )


def prepare(folder):
    model = keras_vit.application(ROW)(
        weights=None, input_shape=(16, 64, 3), classes=5, gelu="exact"
    )
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.standard_normal(weight.shape))
    arrays = {"h5": folder / "whole.weights.h5"}
    model.save_weights(arrays["h5"])
    names = {"google": "whole.npz", "timm": "whole.safetensors", "huggingface": "whole"}
    for layout, name in names.items():
        keras_vit.save_checkpoint(model, folder / name, layout)
        arrays[layout] = {
            name: np.ascontiguousarray(x) for name, x in files.read(folder / name).arrays.items()
        }
    return arrays


def main(seed: int, count: int) -> int:
    results, reasons = Counter(), Counter()
    with tempfile.TemporaryDirectory() as name:
        arrays = prepare(Path(name))
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            place = PLACES[rng.integers(len(PLACES))]
            (folder := Path(name) / "one").mkdir()
            verdict, why = judge(rng, place, folder, arrays)
            shutil.rmtree(folder)
            results[verdict] += 1
            reasons[f"{verdict}: {why}" if verdict == "held" else verdict] += 1
            if verdict == "fell":
                print(f"fell: number {number}, {place}: {why}", flush=True)
    for reason, times in sorted(reasons.items()):
        print(f"{times:6,} {reason}")
    print(f"tried {count}, held {results['held']}, fell {results['fell']}")
    return 1 if results["fell"] else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    sys.exit(main(**vars(parser.parse_args())))
