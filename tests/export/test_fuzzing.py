"""Ten thousand damaged files in mixed batches: no crash, no memory that grows, and every good image
is answered right.

The file is also the script that asks them, in a process of its own: a crash there is a failure
    here.
"""

import ctypes
import io
import json
import re
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit.export.image_bytes import MAX_PIXELS, STATUSES
from keras_vit.export.signatures import signatures
from keras_vit.variants import VIT_VARIANTS

pytestmark = pytest.mark.tensorflow

NUM_FILES = 10_000
BATCH = 25  # damaged files; good ones stand between them
BYTES_PER_PIXEL = 26  # of the largest image, as `read_images` says
MEGABYTE = 1e6


def encoded(kind: str, pixels: np.ndarray, **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def seeds(rng: np.random.Generator) -> list[bytes]:
    """Whole files of every kind that a mutation starts from."""
    noise = rng.integers(0, 256, (40, 56, 3)).astype(np.uint8)
    smooth = np.broadcast_to(np.arange(56, dtype=np.uint8)[None, :, None] * 4, noise.shape)
    files = [
        encoded(kind, pixels)
        for kind in ("JPEG", "PNG", "GIF", "BMP")
        for pixels in (noise, smooth)
    ]
    files += [
        encoded("JPEG", noise, progressive=True),
        encoded("JPEG", noise[..., 0], subsampling=2),
    ]
    files += [encoded("PNG", noise[..., 0]), encoded("PNG", np.dstack([noise, noise[..., :1]]))]
    palette, ink = io.BytesIO(), io.BytesIO()
    Image.fromarray(noise).convert("P").save(palette, "PNG")
    Image.fromarray(noise).convert("CMYK").save(ink, "JPEG")
    return [*files, palette.getvalue(), ink.getvalue()]


def flipped(file: bytes, rng: np.random.Generator) -> bytes:
    numbers = np.frombuffer(file, np.uint8).copy()
    places = rng.integers(0, len(numbers), rng.integers(1, 9))
    numbers[places] ^= (1 << rng.integers(0, 8, len(places))).astype(np.uint8)
    return numbers.tobytes()


def flipped_in_the_header(file: bytes, rng: np.random.Generator) -> bytes:
    return flipped(file[:200], rng) + file[200:]


def cut(file: bytes, rng: np.random.Generator) -> bytes:
    return file[: rng.integers(0, len(file))]


def without_a_part(file: bytes, rng: np.random.Generator) -> bytes:
    start, end = sorted(rng.integers(0, len(file), 2))
    return file[:start] + file[end:]


def with_a_part_twice(file: bytes, rng: np.random.Generator) -> bytes:
    start, end = sorted(rng.integers(0, len(file), 2))
    return file[:end] + file[start:end] * int(rng.integers(1, 20)) + file[end:]


def with_junk_inside(file: bytes, rng: np.random.Generator) -> bytes:
    place = rng.integers(0, len(file))
    return file[:place] + rng.bytes(rng.integers(1, 300)) + file[place:]


def of_another_size(file: bytes, rng: np.random.Generator) -> bytes:
    """The header says so, with a right checksum; often it is huge."""
    width, height = (int(2 ** rng.uniform(0, 17)) for _ in range(2))
    if file.startswith(b"\x89PNG"):
        chunk = b"IHDR" + struct.pack(">II", width, height) + file[24:29]
        return file[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + file[33:]
    start = max(file.find(b"\xff\xc0"), file.find(b"\xff\xc2")) + 5
    return file[:start] + struct.pack(">HH", height % 65536, width % 65536) + file[start + 4 :]


def nothing_known(_: bytes, rng: np.random.Generator) -> bytes:
    begins = [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM"][rng.integers(5)]
    return begins + rng.bytes(int(rng.integers(0, 500) * rng.integers(2)))


def as_it_is(file: bytes, _: np.random.Generator) -> bytes:
    return file


MUTATIONS: list[Callable[[bytes, np.random.Generator], bytes]] = [
    *(
        flipped,
        flipped_in_the_header,
        cut,
        without_a_part,
        with_a_part_twice,
        with_junk_inside,
        of_another_size,
    ),
    *(nothing_known, as_it_is),
]


def resident_megabytes() -> float:
    """What is in use: memory that was freed, and that the C library keeps for later, is given back
    first.
    """
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MEGABYTE


def peak_megabytes() -> float:
    """Of this program. Not `getrusage`, which counts what the process was before: a copy of its
    parent.
    """
    return (
        int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])
        * 1024
        / MEGABYTE
    )


def ask_all(folder: str, num_files: int) -> dict:
    """Asks a model about damaged files with good ones between them, all of it twice; returns what
    came of it.
    """
    loaded = tf.saved_model.load(folder)

    def ask(files: list[bytes]) -> dict[str, np.ndarray]:
        answers = loaded.signatures["serving_default"](image_bytes=tf.constant(files, tf.string))
        return {name: values.numpy() for name, values in answers.items()}

    # What threads and caches take comes with the first pass. The second asks the same again, so
    # nothing new is kept.
    first, second = (one_pass(ask, num_files, np.random.default_rng(0)) for _ in range(2))
    wrong = first["wrong"] + second["wrong"]
    return {**second, "wrong": wrong, "first_mb": first["memory_mb"], "peak_mb": peak_megabytes()}


def one_pass(ask: Callable, num_files: int, rng: np.random.Generator) -> dict:
    whole = seeds(rng)
    good = [whole[0], whole[2], whole[8]]  # JPEG, PNG, progressive JPEG
    alone = {name: np.concatenate([ask([file])[name] for file in good]) for name in ask(good)}
    counts, wrong, memory = dict.fromkeys(STATUSES, 0), 0, []
    for _ in range(0, num_files, BATCH):
        files = [
            MUTATIONS[rng.integers(len(MUTATIONS))](whole[rng.integers(len(whole))], rng)
            for _ in range(BATCH)
        ]
        places = np.sort(rng.integers(0, BATCH + 1, len(good))) + np.arange(len(good))
        for place, file in zip(places, good, strict=True):
            files.insert(place, file)
        answers = ask(files)
        others = np.delete(np.arange(len(files)), places)
        wrong += not is_right({name: values[places] for name, values in answers.items()}, alone)
        wrong += not is_consistent({name: values[others] for name, values in answers.items()})
        for status in answers["status"][others]:
            counts[status.decode()] += 1
        memory.append(resident_megabytes())
    return {
        "counts": counts,
        "wrong": wrong,
        "memory_mb": float(np.median(memory[-len(memory) // 4 :])),
    }


def is_right(found: dict[str, np.ndarray], alone: dict[str, np.ndarray]) -> bool:
    texts = all((found[name] == alone[name]).all() for name in ("status", "labels", "class_ids"))
    return (
        texts
        and np.allclose(found["scores"], alone["scores"], atol=1e-5)
        and (found["status"] == b"ok").all()
    )


def is_consistent(found: dict[str, np.ndarray]) -> bool:
    """An image that was read has scores that add up to 1; another has no class."""
    is_ok = found["status"] == b"ok"
    nothing = (found["class_ids"][~is_ok] == -1).all() and (found["labels"][~is_ok] == b"").all()
    sums = found["scores"].sum(axis=1)
    return bool(
        nothing and np.allclose(sums, is_ok, atol=1e-4) and (found["class_ids"][is_ok] >= 0).all()
    )


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    row = replace(
        VIT_VARIANTS["ViT_Ti16"],
        name="tiny",
        patch_size=8,
        width=16,
        depth=1,
        num_heads=2,
        mlp_dim=32,
    )
    model = keras_vit.application(row)(weights=None, input_shape=(32, 32, 3), classes=3)
    kernel = model.get_layer("predictions").kernel
    kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
    names = tmp_path / "classes.txt"
    names.write_text("a\nb\nc\n")
    holder, asked = signatures(model, image_size=(32, 32), class_file=names)
    tf.saved_model.save(holder, str(tmp_path / "model"), signatures=asked)
    return tmp_path / "model"


@pytest.mark.slow
def test_ten_thousand_damaged_files_cost_only_themselves(exported: Path):
    command = [sys.executable, __file__, str(exported), str(NUM_FILES)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, f"It ended with {done.returncode}: {done.stderr[-2000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == 0, found
    assert sum(found["counts"].values()) == NUM_FILES
    # every kind of damage was there, and files that survived it
    assert min(found["counts"].values()) > 50, found
    assert found["memory_mb"] - found["first_mb"] < 50, found
    assert found["peak_mb"] - found["memory_mb"] < BYTES_PER_PIXEL * MAX_PIXELS / MEGABYTE, found


if __name__ == "__main__":
    print(json.dumps(ask_all(sys.argv[1], int(sys.argv[2]))))
