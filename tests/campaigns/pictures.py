"""Damaged pictures: every reader sees the same picture, or says why it sees none.

    python tests/campaigns/pictures.py --seed=0 --count=200

JPEG, PNG, GIF, BMP, WebP and TIFF files of many kinds, some of them held sideways, are cut,
flipped, spliced, and given another size in the header. Each is read as `predict` reads it, as
training and evaluation do, and JPEG and PNG as the signature of exported models does. It holds if
all that read it give the same pixels, and all that do not give a reason; nothing else may be
raised. Kinds other than JPEG and PNG have one decoder: all commands must read the same of them.
"some" counts the files that some readers accept and others refuse: their decoders forgive different
damage.
"""

import argparse
import io
import itertools
import struct
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit import predict
from keras_vit.data.transforms import decode, resize
from keras_vit.export.image_bytes import STATUSES, read_images

SIZE = (32, 32)
MAX_PIXELS = 2**22  # a bomb is refused before it is unpacked, as on a server
# levels; decoders round differently where colours are stored at half the resolution
TOLERANCE = 3.0
SERVED = ("JPEG", "PNG")
_ORIENTATION = 0x0112  # EXIF's


# ---- whole files


def whole_files(rng: np.random.Generator) -> list[tuple[str, bytes]]:
    """Format and content."""
    noise = rng.integers(0, 256, (40, 56, 4)).astype(np.uint8)
    smooth = np.array(Image.fromarray(noise[:5, :7, :3]).resize((56, 40), Image.Resampling.BICUBIC))
    rgb, grey, palette = (
        Image.fromarray(smooth),
        Image.fromarray(smooth[..., 0]),
        Image.fromarray(smooth).quantize(16),
    )
    clear = Image.fromarray(np.dstack([smooth, noise[..., 3]]))
    deep = Image.fromarray(smooth[..., 0].astype(np.uint16) * 257)
    jpeg = [
        (rgb, {}),
        (rgb, {"progressive": True}),
        (rgb, {"subsampling": 0, "quality": 95}),
        (grey, {}),
    ]
    jpeg += [(Image.fromarray(noise[..., :3]), {"subsampling": 0})]
    png = [
        (rgb, {}),
        (clear, {}),
        (grey, {}),
        (deep, {}),
        (palette, {}),
        (palette, {"transparency": 3}),
    ]
    png += [(clear.convert("LA"), {}), (grey.convert("1"), {}), (Image.fromarray(noise), {})]
    files = [("JPEG", image, options) for image, options in jpeg] + [
        ("PNG", image, options) for image, options in png
    ]
    files += [
        ("GIF", palette, {}),
        ("BMP", rgb, {}),
        ("WEBP", rgb, {"quality": 90}),
        ("WEBP", rgb, {"lossless": True}),
    ]
    tiff = [
        (rgb, {}),
        (clear, {}),
        (deep, {}),
        (palette, {}),
        (rgb, {"compression": "tiff_lzw"}),
        (grey, {}),
    ]
    files += [("TIFF", image, options) for image, options in tiff]
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        exif = Image.Exif()
        exif[_ORIENTATION] = int(rng.integers(2, 9))
        files.append((kind, rgb, {"exif": exif}))
    return [(kind, _encoded(kind, image, options)) for kind, image, options in files]


def _encoded(kind: str, image: Image.Image, options: dict) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


# ---- damage


def flipped(file: bytes, rng: np.random.Generator) -> bytes:
    numbers = np.frombuffer(file, np.uint8).copy()
    places = rng.integers(0, len(numbers), rng.integers(1, 9))
    numbers[places] ^= (1 << rng.integers(0, 8, len(places))).astype(np.uint8)
    return numbers.tobytes()


def flipped_in_the_header(file: bytes, rng: np.random.Generator) -> bytes:
    return flipped(file[:120], rng) + file[120:]


def flipped_with_right_checksums(file: bytes, rng: np.random.Generator) -> bytes:
    """Of a PNG, whose checksums hide from a decoder what a careless writer does."""
    file = flipped(file, rng)
    if not file.startswith(b"\x89PNG"):
        return file
    fixed, place = file[:8], 8
    while place + 12 <= len(file):
        (length,) = struct.unpack(">I", file[place : place + 4])
        body = file[place + 4 : place + 8 + length]
        fixed += file[place : place + 4] + body + struct.pack(">I", zlib.crc32(body))
        place += 12 + length
    return fixed


def cut(file: bytes, rng: np.random.Generator) -> bytes:
    return file[: rng.integers(0, len(file))]


def without_a_part(file: bytes, rng: np.random.Generator) -> bytes:
    start, end = sorted(rng.integers(0, len(file), 2))
    return file[:start] + file[end:]


def with_junk_inside(file: bytes, rng: np.random.Generator) -> bytes:
    place = rng.integers(0, len(file))
    return file[:place] + rng.bytes(rng.integers(1, 300)) + file[place:]


def with_junk_behind(file: bytes, rng: np.random.Generator) -> bytes:
    return file + rng.bytes(int(10 ** rng.uniform(0, 6)))


def of_another_size(file: bytes, rng: np.random.Generator) -> bytes:
    width, height = (int(2 ** rng.uniform(0, 17)) for _ in range(2))
    if file.startswith(b"\x89PNG"):
        chunk = b"IHDR" + struct.pack(">II", width, height) + file[24:29]
        return file[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + file[33:]
    start = max(file.find(b"\xff\xc0"), file.find(b"\xff\xc2")) + 5
    return file[:start] + struct.pack(">HH", height % 65536, width % 65536) + file[start + 4 :]


def as_it_is(file: bytes, _: np.random.Generator) -> bytes:
    return file


DAMAGE = (
    *(
        flipped,
        flipped_in_the_header,
        flipped_with_right_checksums,
        cut,
        without_a_part,
        with_junk_inside,
    ),
    *(with_junk_behind, of_another_size, as_it_is),
)


# ---- readers: levels (H, W, 3), or why there are none


def by_predict(path: Path) -> np.ndarray | str:
    pixels, problem = predict._try_to_read(path, SIZE)
    return problem if pixels is None else pixels


def by_training(path: Path) -> np.ndarray | str:
    try:
        shape = decode(tf.io.read_file(str(path)), tf.constant([0, 0])).shape
        if shape[0] * shape[1] > MAX_PIXELS:
            return "too large for this campaign"
        return resize(SIZE)(tf.io.read_file(str(path)), tf.constant([0, 0])).numpy()
    except (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError) as error:
        return str(error)


_served = tf.function(
    lambda files: read_images(files, SIZE, max_pixels=MAX_PIXELS),
    input_signature=[tf.TensorSpec([None], tf.string)],
    autograph=False,
)


def by_server(path: Path) -> np.ndarray | str:
    pixels, status = _served(tf.constant([path.read_bytes()]))
    (word,) = status.numpy()
    if word.decode() not in STATUSES:
        raise AssertionError(f"the status is {word!r}")
    return pixels.numpy()[0] if word == b"ok" else word.decode()


def fall(kind: str, damage: str, path: Path, outcomes: Counter) -> str:
    """What is wrong with how a file is read, or "" if nothing is."""
    readers = {"predict": by_predict}
    readers |= {"training": by_training}
    readers |= {"server": by_server} if kind in SERVED else {}
    found, problems = {}, []
    for name, read in readers.items():
        try:
            found[name] = read(path)
        except Exception as error:  # that is what must not be
            problems.append(f"{name} raises {type(error).__name__}: {error}")
    read = {name: pixels for name, pixels in found.items() if isinstance(pixels, np.ndarray)}
    problems += [
        f"{name} gives no reason" for name in found.keys() - read.keys() if not found[name].strip()
    ]
    for (one, pixels), (other, others) in itertools.combinations(read.items(), 2):
        difference = np.abs(pixels - others).max()
        if not difference <= TOLERANCE:
            problems.append(f"{one} and {other} differ by {difference:.0f} levels")
    if kind not in SERVED and 0 < len(read) < len(readers):
        problems.append(
            f"not read by { ({name: found[name] for name in found.keys() - read.keys()}) }"
        )
    if damage == as_it_is.__name__ and len(read) < len(readers):
        problems.append(
            f"whole, and not read: { ({name: found[name] for name in found.keys() - read.keys()}) }"
        )
    outcomes["all" if len(read) == len(readers) else "none" if not read else "some"] += 1
    return "; ".join(problems)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # Pillow's, of odd files
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS // 2  # it refuses from twice as many
    rng = np.random.default_rng(options.seed)
    files, falls, outcomes = whole_files(rng), [], Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.count):
            kind, content = files[rng.integers(len(files))]
            damage = DAMAGE[rng.integers(len(DAMAGE))]
            path = Path(folder, f"{number}.{kind.lower()}")
            path.write_bytes(damage(content, rng))
            problem = fall(kind, damage.__name__, path, outcomes)
            if problem:
                falls.append(
                    f"seed {options.seed}, number {number}, {kind} {damage.__name__}: {problem}"
                )
            path.unlink()
    print(*falls, sep="\n", end="\n" if falls else "")
    print(f"read by all {outcomes['all']}, by some {outcomes['some']}, by none {outcomes['none']}")
    print(f"tried {options.count}, held {options.count - len(falls)}, fell {len(falls)}")
    return 1 if falls else 0


if __name__ == "__main__":
    sys.exit(main())
