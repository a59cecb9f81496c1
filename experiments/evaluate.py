"""Measures several checkpoints on several test sets; one table, with the published accuracies.

    python experiments/evaluate.py --checkpoints=ViT_B16=imagenet,ViT_L16=L_16.npz,flowers_vit/model.keras \
        --data=/data/imagenet/val,real:/data/imagenet/val:real.json,/data/imagenetv2 --workdir=runs/evaluation

A checkpoint is NAME=WEIGHTS (a tag, a file or a URL) or a file model.keras. A test set is a folder
of classes (or one with a subfolder `test`), real:FOLDER:real.json for ImageNet ReaL,
objectnet:FOLDER, or tfds:NAME:SPLIT. Every image counts once. Measurements are stored in the
folder, one report for each checkpoint and test set, and are not repeated. The table is written to
`evaluation.md` and `evaluation.csv`.

Tables 2 and 5 of arXiv:2010.11929 report fine-tuned checkpoints. `sweep.py` fine-tunes as the paper
does; `vtab.py` evaluates on VTAB.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import command_line.native_logs

from absl import app, flags
from command_line.exit_codes import exit_on_error

from keras_vit.devices import DevicesConfig
from keras_vit.evaluate.classifier import class_names
from keras_vit.evaluate.label_sets import LabelSets
from keras_vit.evaluate.measure import find_test_set, measure
from keras_vit.pixels import RANGES
from keras_vit.weights import source
from keras_vit.weights.secrets import join_command, without_secrets
from keras_vit.writing import table, write_csv, write_text

_CHECKPOINTS = flags.DEFINE_list(
    "checkpoints", None, "NAME=WEIGHTS or model.keras, separated by commas.", required=True
)
_DATA = flags.DEFINE_list("data", None, "Test sets, separated by commas.", required=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the reports.", required=True)
_PIXELS = flags.DEFINE_enum(
    "pixels", None, [*RANGES], "Pixel range of files model.keras. Default: from their layers."
)
_CROP = flags.DEFINE_string(
    "crop",
    "resize",
    "How images become square: resize, resize_crop, resize_shorter, central:SHARE or published.",
)
_BATCH = flags.DEFINE_integer("batch_size", None, "Images per step.", lower_bound=1)
_STRICT = flags.DEFINE_bool("strict", False, "Fail if an image cannot be read.")
_DEVICES = flags.DEFINE_enum(
    "devices", "auto", ["auto", "one", "mirrored", "tpu"], "Devices to compute on."
)
_PRECISION = flags.DEFINE_enum(
    "precision", "float32", ["float32", "mixed_bfloat16", "mixed_float16"], "Dtype policy."
)

_LONGEST_NAME = 200  # bytes of the name of a folder; file systems allow 255


@exit_on_error()
def main(_: list[str]) -> None:
    """Runs the missing measurements, and writes the table after each."""
    workdir, rows = Path(_WORKDIR.value).expanduser(), []
    pairs = [(checkpoint, data) for checkpoint in _CHECKPOINTS.value for data in _DATA.value]
    if not pairs:
        raise ValueError("`--checkpoints` and `--data` must each name at least one.")
    for checkpoint, data in pairs:  # raises errors before anything is computed
        _parse_checkpoint(checkpoint), _parse_test_set(data)
    for checkpoint, data in pairs:
        weights = _describe_weights(checkpoint)
        shown = without_secrets(checkpoint)
        if shown != checkpoint:  # what is hidden may tell one file from another
            shown += f" ({weights.rpartition('sha256 ')[2]})"
        asked = {
            "checkpoint": shown,
            "content": f"{weights}; images, sha256 {_hash_images(checkpoint, data)}",
            "data": data,
            "crop": _CROP.value,
            "precision": _PRECISION.value,
        }
        asked |= {} if _PIXELS.value is None else {"pixels": _PIXELS.value}
        rows.append(
            [
                asked["checkpoint"],
                data,
                *_measure_once(
                    checkpoint, asked, workdir / _make_folder_name(f"{asked['checkpoint']}--{data}")
                ),
            ]
        )
        _write_report(workdir, rows)
    print(workdir / "evaluation.md", flush=True)


def _make_folder_name(words: str) -> str:
    name = re.sub(r"[^\w.=-]+", "_", words).strip("_")
    encoded, third = os.fsencode(name), _LONGEST_NAME // 3
    if len(encoded) <= _LONGEST_NAME:
        return name
    start, end = (part.decode(errors="ignore") for part in (encoded[:third], encoded[-third:]))
    digest = hashlib.sha256(os.fsencode(words)).hexdigest()[:12]
    return f"{start}_{digest}_{end}"


def _describe_weights(checkpoint: str) -> str:
    """Returns the weights with a hash, so that a rerun notices that they have changed."""
    named = _parse_checkpoint(checkpoint)
    if "weights" in named:
        return source.describe_for_record(**named)
    file = Path(named["model"]).expanduser()
    if not file.is_file():
        raise ValueError(f"There is no file {file}.")
    return f"sha256 {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"


def _hash_images(checkpoint: str, data: str) -> str:
    """Returns a hash of the images, their labels, and the class names beside the weights."""
    named = _parse_checkpoint(checkpoint)
    images = find_test_set(num_classes=0, **_parse_test_set(data)).images
    digest = hashlib.sha256()
    if isinstance(images, LabelSets):
        digest.update(repr((images.right, images.allowed)).encode())
        images = images.source
    digest.update(images.sha256().encode())
    if names := class_names(named.get("weights", named["model"])):
        digest.update(repr(names).encode())
    return digest.hexdigest()[:16]


def _measure_once(
    checkpoint: str, asked: dict[str, str], folder: Path
) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Returns the measurements, from the folder if they exist, and the published accuracies: pairs
    of a description and a number.
    """
    path = folder / "asked.json"
    there = json.loads(path.read_text(encoding="utf-8")) if path.exists() else asked
    if there != asked:
        raise ValueError(
            f"{folder} holds a measurement with other settings. There: {there}. Here: {asked}. "
            f"Choose another `--workdir`, or remove that folder to measure again."
        )
    if not path.exists():
        measure(
            **_parse_checkpoint(checkpoint),
            **_parse_test_set(asked["data"]),
            output=folder,
            eval_crop=_CROP.value,
            batch_size=_BATCH.value,
            strict=_STRICT.value,
            devices=DevicesConfig(kind=_DEVICES.value, precision=_PRECISION.value),
        )
        write_text(path, json.dumps(asked, indent=1) + "\n")
    numbers = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    if _STRICT.value and any(
        count for name, count in numbers.items() if name.rpartition("/")[2] == "unreadable"
    ):
        raise ValueError(
            f"{folder} was measured without unreadable images, which `--strict` forbids. Replace "
            f"the images and remove that folder."
        )
    page = (folder / "report.md").read_text(encoding="utf-8")
    return numbers, re.findall(r"^\| published, top-1, ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE)


def _parse_checkpoint(words: str) -> dict[str, Any]:
    """Returns the arguments of `measure` that name the model."""
    if words.endswith(".keras"):
        return {"model": words, "pixels": _PIXELS.value}
    name, equals, weights = words.partition("=")
    if not equals or not weights:
        raise ValueError(
            f"A checkpoint must be NAME=WEIGHTS or a file model.keras. Received: {words!r}."
        )
    return {"model": name, "weights": weights}


def _parse_test_set(words: str) -> dict[str, Any]:
    """Returns the arguments of `measure` that name the test set."""
    kind, colon, rest = words.partition(":")
    if colon and kind == "real":
        folder, _, labels = rest.rpartition(":")
        if not folder or not labels:
            raise ValueError(
                f"ImageNet ReaL must be given as real:FOLDER:real.json. Received: {words!r}."
            )
        return {"data": folder, "real": labels}
    return (
        {"data": rest, "is_objectnet": True} if colon and kind == "objectnet" else {"data": words}
    )


def _write_report(workdir: Path, rows: Sequence[Sequence[Any]]) -> None:
    header = ["checkpoint", "test set", "images", "top-1", "top-5", "published top-1"]
    lines = []
    for checkpoint, data, numbers, published in rows:
        short = {name.rpartition("/")[2]: value for name, value in numbers.items()}
        shares = [f"{100 * short[name]:.2f}" if name in short else "" for name in ("top1", "top5")]
        beside = "; ".join(f"{value} {words}" for words, value in published)
        lines.append([checkpoint, data, f"{short['images']:,}", *shares, beside])
    command = f"```sh\n{join_command(['python', *sys.argv])}\n```"
    write_text(
        workdir / "evaluation.md",
        "\n\n".join(["# Evaluation", command, table(header, lines)]) + "\n",
    )
    names = list(dict.fromkeys(name for _, _, numbers, _ in rows for name in numbers))
    write_csv(
        workdir / "evaluation.csv",
        ["checkpoint", "data", *names],
        [
            [checkpoint, data, *(numbers.get(name, "") for name in names)]
            for checkpoint, data, numbers, _ in rows
        ],
    )


if __name__ == "__main__":
    app.run(main)
