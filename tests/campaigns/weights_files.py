"""Damaged and hostile files of weights: each loads as what it was, or is refused in one sentence,
in little memory.

    python tests/campaigns/weights_files.py --seed=0 --count=200

Files of all kinds (npz, safetensors, .weights.h5, PyTorch's .pth, Hugging Face folders, also of
transformers 4 on TensorFlow) of a small model are cut, flipped, overwritten, shuffled, and given
claims of any size. In PyTorch's files, the pickle is also damaged inside a whole archive, or
replaced by a hostile one that runs a program.
Each is read in a process of its own, so that a crash counts as a fall. It holds if reading gives
exactly the arrays and the metadata of the whole file, or a ValueError or an OSError of one line; if
names or shapes differ, the strict restore refuses them. HDF5 and foreign safetensors have no
checksum of numbers, and a pickle decides which numbers are whose: where nothing but numbers changed
in such a file, the line "unseen" counts it. A pickle that was executed is a fall.
"""

import argparse
import io
import json
import os
import pickle
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch_files  # noqa: E402

import keras_vit  # noqa: E402
from keras_vit.variants import VIT_VARIANTS  # noqa: E402
from keras_vit.weights import source  # noqa: E402

ROW = replace(
    VIT_VARIANTS["ViT_Ti16"], name="small", patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=32
)
LIMIT_BYTES = 10**9
SECONDS = 120
# What numbers are stored in, and whether a change of them can be noticed.
KINDS = {
    "npz": True,
    "deflated": True,
    "safetensors": True,
    "foreign": False,
    "h5": False,
    "folder": True,
    "tf_folder": False,
    "pth": True,
    "pickle": False,  # the pickle of a .pth, in a whole archive
}
# What is damaged in a folder. The configuration of a tf_model.h5 has no second witness.
VICTIMS = {"folder": ("config.json", "model.safetensors"), "tf_folder": ("tf_model.h5",)}
PICKLE, EXECUTED = "archive/data.pkl", "executed"
HUGE = (0, 1, 255, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)


# ---- whole files


def write_whole(folder: Path) -> dict[str, Path]:
    """One file of each kind, all of the same model."""
    import safetensors.numpy

    model = keras_vit.application(ROW)(
        weights=None, input_shape=(16, 64, 3), classes=5, gelu="exact"
    )
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.standard_normal(weight.shape))
    files = {kind: folder / f"model.{kind}" for kind in KINDS}
    keras_vit.save_checkpoint(model, files["npz"], "google")
    keras_vit.save_checkpoint(model, folder / "model.safetensors", "timm")
    keras_vit.save_checkpoint(model, files["folder"], "huggingface")
    model.save_weights(folder / "model.weights.h5")
    os.replace(folder / "model.weights.h5", files["h5"])
    with np.load(files["npz"]) as arrays:
        np.savez_compressed(folder / "deflated.npz", **arrays)
    os.replace(folder / "deflated.npz", files["deflated"])
    write_tf_folder(files["folder"], files["tf_folder"])
    for kind in ("pth", "pickle"):
        torch_files.save(files[kind], safetensors.numpy.load_file(folder / "model.safetensors"))
    metadata = {"num_heads": "2", "grid": "[2, 8]"}
    safetensors.numpy.save_file(
        safetensors.numpy.load_file(files["safetensors"]), files["foreign"], metadata
    )
    return files


def write_tf_folder(whole: Path, folder: Path) -> None:
    """A folder of Hugging Face with the names and shapes of transformers 4 on TensorFlow."""
    import h5py
    import safetensors.numpy

    folder.mkdir()
    shutil.copy(whole / "config.json", folder)
    with h5py.File(folder / "tf_model.h5", "w") as file:
        file.attrs["layer_names"] = ["vit", "classifier"]
        for name, array in safetensors.numpy.load_file(whole / "model.safetensors").items():
            *modules, leaf = name.split(".")
            if "norm" in modules[-1]:
                leaf = {"weight": "gamma", "bias": "beta"}[leaf]
            layer = file.require_group(modules[0])
            layer.attrs["weight_names"] = []
            path = "/".join(["model", *modules, leaf.replace("weight", "kernel")])
            place = re.sub(r"layer/(\d+)", r"layer_._\1", path)
            axes = {2: (1, 0), 4: (2, 3, 1, 0)}.get(array.ndim)
            layer[f"{place}:0"] = array if axes is None else array.transpose(axes)


# ---- what happens to them


def cut(rng, data):
    return data[: -int(2 ** rng.uniform(0, np.log2(len(data))))]


def extend(rng, data):
    return data + rng.bytes(int(2 ** rng.uniform(0, 12)))


def flip_bits(rng, data):
    content = bytearray(data)
    for place in _places(rng, len(data), int(rng.integers(1, 4))):
        content[place] ^= 1 << int(rng.integers(8))
    return bytes(content)


def overwrite(rng, data):
    size = int(2 ** rng.uniform(0, 10))
    (place,) = _places(rng, len(data), 1)
    piece = (rng.bytes(size), bytes(size), b"\xff" * size, b"{" * size, b"[" * size)[
        rng.integers(5)
    ]
    return data[:place] + piece + data[place + size :]


def write_number(rng, data):
    """Lengths, offsets and shapes are integers: one of them becomes huge."""
    (place,) = _places(rng, len(data), 1)
    value, width = HUGE[rng.integers(len(HUGE))], (2, 4, 8)[rng.integers(3)]
    return data[:place] + struct.pack("<Q", value)[:width] + data[place + width :]


def change_digits(rng, data):
    """Headers are text: digits become others, as many."""
    content = bytearray(data)
    digits = [place for place in range(min(len(data), 20_000)) if 48 <= data[place] <= 57] or [0]
    for _ in range(int(rng.integers(1, 4))):
        content[digits[rng.integers(len(digits))]] = 48 + int(rng.integers(10))
    return bytes(content)


def remove(rng, data):
    (place,) = _places(rng, len(data), 1)
    return data[:place] + data[place + int(2 ** rng.uniform(0, 12)) :]


def insert(rng, data):
    (place,) = _places(rng, len(data), 1)
    return data[:place] + rng.bytes(int(2 ** rng.uniform(0, 8))) + data[place:]


def move(rng, data):
    start, end, to = sorted(_places(rng, len(data), 3))
    return data[:start] + data[end:to] + data[start:end] + data[to:]


def become_other(rng, data):
    others = (
        *(
            b"",
            b"\n",
            b"<!DOCTYPE html><html>Please log in</html>",
            b"{}",
            b"[" * 10**6,
            b"5",
            pickle.dumps({"a": 1}),
        ),
        *(data[: 2 ** int(rng.integers(10))], data * 2, b"PK" + data, data[::-1], rng.bytes(1000)),
    )
    return others[rng.integers(len(others))]


def _places(rng, size, count):
    """Half of them near the ends, where formats keep what they say of the rest."""
    near = [int(min(2 ** rng.uniform(0, 14), size - 1)) for _ in range(count)]
    far = [int(rng.integers(size)) for _ in range(count)]
    return [
        (start, size - start - 1, place, place)[rng.integers(4)]
        for start, place in zip(near, far, strict=True)
    ]


CHANGES = (
    cut,
    extend,
    flip_bits,
    overwrite,
    write_number,
    change_digits,
    remove,
    insert,
    move,
    become_other,
)


def claim_npz(rng, path, whole):
    """Zeros that take a thousandth of their size, or a header that claims what is not there."""
    with np.load(whole) as arrays:
        arrays = dict(arrays)
    name, shape = _claim(rng, arrays)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for other, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array)
            if other != name:
                archive.writestr(f"{other}.npy", content.getvalue())
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            left = 4 * int(np.prod(shape, dtype=object)) if rng.integers(8) == 0 else 0
            for _ in range(0, min(left, 2**31), 2**24):
                member.write(bytes(2**24))


def claim_safetensors(rng, path, whole):
    import safetensors.numpy

    arrays = safetensors.numpy.load_file(whole)
    name, shape = _claim(rng, arrays)
    header, offset = {}, 0
    for other, array in arrays.items():
        mine = shape if other == name else array.shape
        end = offset + 4 * int(np.prod(mine, dtype=object))
        header[other] = {"dtype": "F32", "shape": list(mine), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(min(8 + len(text) + offset, 2**40))


def claim_h5(rng, path, whole):
    import h5py

    shutil.copy(whole, path)
    with h5py.File(path, "r+") as file:
        datasets = []
        file.visititems(
            lambda name, item: datasets.append(name) if isinstance(item, h5py.Dataset) else None
        )
        place = datasets[rng.integers(len(datasets))]
        _, shape = _claim(rng, {place: file[place]})
        del file[place]
        chunks = tuple(min(side, 2**10) for side in shape) if rng.integers(2) else None
        layout = {"chunks": chunks or True} if rng.integers(2) else {"track_times": False}
        file.create_dataset(place, shape, "f4", **layout)


def _claim(rng, arrays):
    name = list(arrays)[rng.integers(len(arrays))]
    shape = list(arrays[name].shape) or [1]
    shape[rng.integers(len(shape))] = int(2 ** rng.uniform(10, 40))
    return name, tuple(shape)


def claim_pth(rng, path, whole):
    """A storage that claims what is not there, a bomb, or two members of one name."""
    members = _read_members(whole)
    choice = rng.integers(3)
    if choice == 0:
        name = [name for name in members if "/data/" in name][0]
        numbers = np.frombuffer(members[name], np.float32)
        shape = (int(2 ** rng.uniform(10, 40)),)
        torch_files.save(path, {"w": torch_files.View(numbers, 0, shape, (1,))})
    elif choice == 1:
        torch_files.save(path, {"w": np.zeros(2**26, "float32")}, compression=zipfile.ZIP_DEFLATED)
    else:
        with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
            warnings.simplefilter("ignore")
            for name, content in [*members.items(), *members.items()]:
                archive.writestr(name, content)


def claim_pickle(rng, path, whole):
    """A pickle that runs a program, or claims to be large, once in two damaged too."""
    name = [*torch_files.HOSTILE, *torch_files.CLAIMS][
        rng.integers(len(torch_files.HOSTILE) + len(torch_files.CLAIMS))
    ]
    content = torch_files.CLAIMS.get(name)
    if content is None:
        value = torch_files.HOSTILE[name](path.parent / EXECUTED)
        content = pickle.dumps({"w": value} if rng.integers(2) else value, int(rng.integers(6)))
    if content and rng.integers(2):
        content = CHANGES[rng.integers(len(CHANGES))](rng, content)
    torch_files.write_zip(path, _read_members(whole) | {PICKLE: content})


def _read_members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


CLAIMS = {
    "npz": claim_npz,
    "safetensors": claim_safetensors,
    "h5": claim_h5,
    "tf_folder": claim_h5,
    "pth": claim_pth,
    "pickle": claim_pickle,
}


def damage(rng, whole: dict[str, Path], folder: Path) -> tuple[str, str, Path]:
    """Makes one file. Returns its kind, what was done to it, and where it is."""
    kind = list(KINDS)[rng.integers(len(KINDS))]
    original, damaged = whole[kind], folder / "damaged"
    victim = damaged
    if kind in VICTIMS:
        shutil.copytree(original, damaged)
        name = VICTIMS[kind][rng.integers(len(VICTIMS[kind]))]
        original, victim = original / name, damaged / name
    if kind in CLAIMS and rng.integers(2 if kind == "pickle" else 12) == 0:
        CLAIMS[kind](rng, victim, original)
        return kind, "claim", damaged
    change = CHANGES[rng.integers(len(CHANGES))]
    if kind == "pickle":
        members = _read_members(original)
        torch_files.write_zip(victim, members | {PICKLE: change(rng, members[PICKLE])})
        return kind, f"{change.__name__} of the pickle", damaged
    victim.write_bytes(change(rng, original.read_bytes()))
    if kind in VICTIMS and rng.integers(10) == 0:
        victim.unlink()
    return kind, f"{change.__name__} of {victim.name}", damaged


# ---- what comes of it


def load(path: Path) -> source.Pretrained:
    return source.load(source.find("small", path, 10_000, variant=ROW))


def judge(path: Path, kind: str, expected: source.Pretrained) -> tuple[str, str]:
    """Returns ("held" | "fell" | "unseen", why)."""
    try:
        found = load(path)
    except (ValueError, OSError) as error:
        message = str(error)
        if "\n" in message or not message or len(message) > 2000 or not message.isprintable():
            return "fell", f"the message is not one sentence: {message[:300]!r}"
        return "held", "refused"
    except BaseException as error:
        return "fell", f"{type(error).__name__}: {str(error)[:300]}"
    if {name: x.shape for name, x in found.arrays.items()} != {
        name: x.shape for name, x in expected.arrays.items()
    }:
        return "held", "refused by restore"
    for fact in ("image_size", "grid", "num_heads", "gelu", "norm_epsilon", "representation_size"):
        if getattr(found, fact) != getattr(expected, fact):
            return "fell", f"{fact} is {getattr(found, fact)}, not {getattr(expected, fact)}"
    changed = [
        name for name, x in expected.arrays.items() if not np.array_equal(x, found.arrays[name])
    ]
    if not changed:
        return "held", "as it was"
    return ("fell" if KINDS[kind] else "unseen"), f"other numbers in {', '.join(changed[:3])}"


def peak_bytes() -> int:
    """The most memory of this process since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def try_one(path: Path, kind: str, expected: source.Pretrained) -> tuple[str, str, int]:
    """Judges in a forked process. A native crash, or a wait without end, is a fall."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        forget_peak()
        before = peak_bytes()
        verdict, why = judge(path, kind, expected)
        os.write(write, json.dumps([verdict, why, peak_bytes() - before]).encode()[:60_000])
        os._exit(0)
    os.close(write)
    with open(read, "rb") as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return (
            "fell",
            f"the process ended with "
            f"{signal.Signals(status & 127).name if status & 127 else status}",
            0,
        )
    verdict, why, peak = json.loads(text)
    if peak > LIMIT_BYTES:
        return "fell", f"reading took {peak / 1e6:,.0f} MB ({verdict}: {why})", peak
    return verdict, why, peak


def main(seed: int, count: int) -> int:
    results, reasons, largest = Counter(), Counter(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = write_whole(folder)
        expected = {kind: load(path) for kind, path in whole.items()}
        assert expected["tf_folder"].arrays.keys() == expected["npz"].arrays.keys()
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            kind, change, path = damage(rng, whole, folder)
            verdict, why, peak = try_one(path, kind, expected[kind])
            if (folder / EXECUTED).exists():
                verdict, why = "fell", "it was executed"
                (folder / EXECUTED).unlink()
            results[verdict] += 1
            reasons[f"{verdict}: {why}" if verdict == "held" else f"{verdict}: {kind}"] += 1
            largest = max(largest, peak)
            if verdict == "fell":
                print(f"fell: number {number}, {kind}, {change}: {why}", flush=True)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for reason, times in sorted(reasons.items()):
        print(f"{times:6,} {reason}")
    print(f"largest peak of memory: {largest / 1e6:,.0f} MB")
    print(
        f"tried {count}, held {results['held']}, fell {results['fell']}, unseen {results['unseen']}"
    )
    return 1 if results["fell"] else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    sys.exit(main(**vars(parser.parse_args())))
