"""What was exported, loaded and run again, and compared with the model: the command
`export --check`.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.evaluate import classifier
from keras_vit.export.checksums import MODEL_SUFFIXES, damage, has_checksums, listed_models
from keras_vit.export.delivery import find_examples
from keras_vit.export.examples import Examples
from keras_vit.export.metadata import (
    EXTRA_FOLDER,
    facts_folder,
    is_size,
    read_facts,
    variables_sha256,
)
from keras_vit.export.reference import read_reference
from keras_vit.export.subject import subject_of
from keras_vit.export.verdicts import Verdict, judge
from keras_vit.export.versions import latest, versions
from keras_vit.pixels import pixels_of

_MOST_SHOWN = 5  # damaged files
_NUM_IMAGES = 100  # where an older version did not record how many there were


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What came of the check of one export.

    Attributes:
        path: Folder of a SavedModel, or file.
        verdict: How far it is from the model; None if it could not be run.
        against: What it was compared with, in words.
        problem: Why it did not pass; "" if it did.
        accepted: The thresholds that the export recorded, in words.
    """

    path: Path
    verdict: Verdict | None
    against: str
    problem: str
    accepted: str = ""

    def text(self) -> str:
        """Returns a paragraph for the terminal."""
        lines = [f"{'FAILED' if self.problem else 'OK':6}  {self.path}"]
        if self.verdict is not None:
            found = self.verdict
            lines.append(
                f"        {found.top1_agreement:.1%} of {found.num_images} images have the same "
                f"answer; "
                f"outputs differ by {found.mean_error:.2g}, at most {found.max_error:.2g}"
            )
            lines.append(
                f"        {found.size_bytes / 1e6:,.1f} MB, {found.latency_ms:.1f} ms an image"
            )
        lines.append(f"        against {self.against}")
        if self.accepted:
            lines.append(f"        accepted when it was exported: {self.accepted}")
        return "\n".join([*lines, *([f"        {self.problem}"] if self.problem else [])])


def check(
    folder: str | os.PathLike,
    *,
    images: str | os.PathLike | None = None,
    num_images: int | None = None,
) -> Iterator[Checked]:
    """Yields the verdict on every file of an export: each is run in a fresh process that does not
    know this package.

    Files that are not what was written, by their checksums, are not run. Thresholds are those of
    the export, which lie beside each file; there are no others.

    The model is built again from the weights that it was exported from, and both are asked about
    `images`. Where the weights are not there any more, or have changed, or the export was made of a
    model in Python, the answers that the model gave when it was exported are taken; they lie beside
    each export.

    Args:
        folder: Of the export: the latest versions of all its formats are checked; or one version,
            or one file.
        images: As in `keras_vit.export.delivery.deliver`; default: those that the export was judged
            on, if they are there. Images that set the ranges of an int8 file are left out.
        num_images: How many of them at most; default: as many as when it was exported.

    Raises:
        ValueError: If there is no export.
    """
    models: dict[str, _Model] = {}  # those of several formats are one and the same
    for path in find_exports(folder):
        yield _check(path, images, num_images, models)


def find_exports(folder: str | os.PathLike) -> list[Path]:
    """Returns SavedModels and files: of a folder of versions the latest of each format, of a
    version all.

    Raises:
        ValueError: If there is none.
    """
    folder = Path(folder).expanduser()
    if folder.suffix in MODEL_SUFFIXES and folder.is_file():
        return [folder]
    found = list(_in_version(folder))
    if not found:
        bases = [folder, *sorted(entry for entry in folder.glob("*") if entry.is_dir())]
        found = [path for base in bases if versions(base) for path in _in_version(latest(base))]
    if not found:
        raise ValueError(
            f"There is no export in {folder}: no version with a SavedModel or "
            f"{', '.join(MODEL_SUFFIXES)}."
        )
    return found


def _in_version(folder: Path) -> Iterator[Path]:
    """What is there, and what was there once."""
    if (folder / "saved_model.pb").is_file() or (folder / EXTRA_FOLDER).is_dir():
        yield folder
    if folder.is_dir():
        there = {path for path in folder.iterdir() if path.suffix in MODEL_SUFFIXES}
        yield from sorted(there.union(listed_models(folder)))


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model that was exported and what it says of some images; or why it cannot be had."""

    network: keras.Model | None = None
    why_not: str = ""
    examples: Examples | None = None
    expected: np.ndarray | None = None


def _check(
    path: Path, images: str | os.PathLike | None, num_images: int | None, models: dict[str, _Model]
) -> Checked:
    against = "nothing"
    try:
        facts = read_facts(path)
        has_list = "checksums" in facts or has_checksums(path)
        found = damage(path) if has_list else []
        if found:
            shown = ", ".join(found[:_MOST_SHOWN]) + (
                f" and {len(found) - _MOST_SHOWN} more" * (len(found) > _MOST_SHOWN)
            )
            return Checked(
                path=path,
                verdict=None,
                against="its checksums",
                problem=f"not as it was exported: {shown}",
            )
        asked = [facts.get(name) for name in ("judged_on", "num_images", "calibrated_on")]
        key = f"{facts['variables_sha256']} {facts['input']} {asked}"
        if key not in models:
            models[key] = _asked(facts, images, num_images)
        model = models[key]
        if model.network is None:
            if images is not None:
                raise ValueError(
                    f"The model cannot be asked about {images}: {model.why_not}. Leave out "
                    f"--images."
                )
            inputs, expected = read_reference(facts_folder(path), facts)
            labels, against = (
                None,
                f"its answers on {len(inputs)} images when it was exported; {model.why_not}",
            )
        else:
            examples, expected = model.examples, model.expected
            levels = examples.pixels()
            taken = facts["input"]["dtype"] == "uint8"
            inputs = (
                levels if taken else pixels_of(model.network).from_levels(levels.astype(np.float32))
            )
            labels, against = examples.labels, f"the model on {len(inputs)} images: {examples.name}"
            if "judged" in facts and examples.fingerprint() != facts["judged"].get("sha256"):
                against += "; they are others than those of the export"
        against += "" if has_list else "; it has no checksums, so it is an older one"
        verdict = judge(path, inputs, expected, labels=labels)
    except Exception as error:  # whatever is wrong with one file, the others are checked
        words = (
            str(error)
            if isinstance(error, OSError | ValueError)
            else f"{type(error).__name__}: {error}"
        )
        return Checked(path=path, verdict=None, against=against, problem=words)
    problem, accepted = _problem(verdict, facts["accepted"], path.stem)
    return Checked(path=path, verdict=verdict, against=against, problem=problem, accepted=accepted)


def _others(examples: Examples, calibrated_on: list[str]) -> Examples:
    """The images that did not set the ranges of an int8 file.

    Raises:
        ValueError: If none is left.
    """
    others = ~np.isin(examples.fingerprints(), calibrated_on)
    if not others.any():
        raise ValueError(
            f"All {len(others)} images of {examples.name} set the ranges of int8, so nothing can "
            f"be judged on them. "
            "Name other photographs with --images."
        )
    return examples.those(others)


def _asked(
    facts: dict[str, Any], images: str | os.PathLike | None, num_images: int | None
) -> _Model:
    network, why_not = _rebuilt(facts)
    if network is None:
        return _Model(why_not=why_not)
    chosen = images or facts.get("judged_on")
    if (
        images is None
        and chosen is not None
        and not os.path.exists(chosen)
        and not chosen.startswith("tfds:")
    ):
        chosen = None
    names, size = (
        classifier.class_names(facts["weights"] or facts["model"]),
        tuple(facts["image_size"]),
    )
    found = find_examples(
        chosen, network, names, num_images or facts.get("num_images", _NUM_IMAGES), size
    )
    examples = _others(found, facts.get("calibrated_on", []))
    expected = subject_of(network, size, names).answers(examples.pixels())
    return _Model(network=network, examples=examples, expected=expected)


def _rebuilt(facts: dict[str, Any]) -> tuple[keras.Model | None, str]:
    """The model that was exported, or why it cannot be had."""
    weights = facts.get("weights")
    if (
        "weights" not in facts
        or not isinstance(weights, str | None)
        or not is_size(facts.get("image_size"))
    ):
        return None, "it was exported from Python"
    try:
        network = classifier.build(
            facts["model"], weights, tuple(facts["image_size"]), facts.get("pixels")
        )
    except Exception as error:  # whatever became of the file of the weights
        return None, f"it cannot be built again: {error or type(error).__name__}"
    if variables_sha256(network) != facts["variables_sha256"]:
        return (
            None,
            f"the weights in {weights or facts['model']} are others than those that were exported",
        )
    return network, ""


def _problem(verdict: Verdict, accepted: dict[str, Any], flavour: str) -> tuple[str, str]:
    """Returns the reason why a file is refused, "" if it is accepted, and the thresholds in
    words.
    """
    problems, words = [], []
    bound, least = accepted.get("max_error"), accepted.get("top1_agreement")
    if isinstance(bound, dict):
        if flavour not in bound:
            return (
                f"its facts name no greatest error of {flavour!r}, only of {', '.join(bound)}",
                "",
            )
        bound = bound[flavour]
    if bound is None:
        words.append("errors of any size, as an older version did")
    else:
        words.append(f"errors up to {bound:.2g}")
        if verdict.max_error > bound:
            problems.append(f"differs by {verdict.max_error:.2g}, more than {bound:.2g}")
    if least is not None:
        words.append(f"the same answer for {least:.1%} of the images or more")
        if verdict.top1_agreement < least:
            problems.append(f"agrees on {verdict.top1_agreement:.1%}, less than {least:.1%}")
    return "; ".join(problems), ", ".join(words)
