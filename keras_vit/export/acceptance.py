"""The work of `keras-vit export --check`: comparison of exported files with their model."""

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

_MOST_SHOWN = 5  # damaged files that a message lists
_NUM_IMAGES = 100  # if an older version did not record their number


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Result of the check of one export.

    Attributes:
        path: Folder of a SavedModel, or a file.
        verdict: Differences from the model; None if the export could not be run.
        against: Description of the reference that it was compared with.
        problem: Reason for the failure; "" if the check passed.
        accepted: Description of the thresholds that the export recorded.
    """

    path: Path
    verdict: Verdict | None
    against: str
    problem: str
    accepted: str = ""

    def text(self) -> str:
        """Formats the result for the terminal."""
        lines = [f"{'FAILED' if self.problem else 'OK':6}  {self.path}"]
        if self.verdict is not None:
            found = self.verdict
            lines.append(
                f"        top-1 agreement {found.top1_agreement:.1%} on {found.num_images} images; "
                f"mean error {found.mean_error:.2g}, max error {found.max_error:.2g}"
            )
            lines.append(
                f"        {found.size_bytes / 1e6:,.1f} MB, {found.latency_ms:.1f} ms per image"
            )
        lines.append(f"        compared with {self.against}")
        if self.accepted:
            lines.append(f"        thresholds of the export: {self.accepted}")
        return "\n".join([*lines, *([f"        {self.problem}"] if self.problem else [])])


def check(
    folder: str | os.PathLike,
    *,
    images: str | os.PathLike | None = None,
    num_images: int | None = None,
) -> Iterator[Checked]:
    """Checks every file of an export, each in a new process without this package.

    Files that differ from their checksums are not run. The thresholds are those that the export
    recorded.

    The model is rebuilt from the weights that were exported, and model and file are compared on
    `images`. If the weights are missing or have changed, or the model was exported from Python, the
    outputs recorded at export are the reference.

    Args:
        folder: Folder of the export, of which the latest versions of all formats are checked; or a
            version; or a file.
        images: As in `keras_vit.export.delivery.deliver`. Default: those that the export was judged
            on, if they exist. Calibration images of an int8 file are excluded.
        num_images: Maximum number of images. Default: as many as at export.

    Yields:
        The result for each file.

    Raises:
        ValueError: If there is no export.
    """
    models: dict[str, _Model] = {}  # several formats share one model
    for path in find_exports(folder):
        yield _check(path, images, num_images, models)


def find_exports(folder: str | os.PathLike) -> list[Path]:
    """Returns the SavedModels and files of a version, or of the latest version of each format.

    Raises:
        ValueError: If there is no export.
    """
    folder = Path(folder).expanduser()
    if folder.suffix in MODEL_SUFFIXES and folder.is_file():
        return [folder]
    found = list(_find_in_version(folder))
    if not found:
        bases = [folder, *sorted(entry for entry in folder.glob("*") if entry.is_dir())]
        found = [
            path for base in bases if versions(base) for path in _find_in_version(latest(base))
        ]
    if not found:
        raise ValueError(
            f"{folder} contains no export: no version with a SavedModel or a file "
            f"{', '.join(MODEL_SUFFIXES)}."
        )
    return found


def _find_in_version(folder: Path) -> Iterator[Path]:
    """Yields the exports of a version, including files that are now missing."""
    if (folder / "saved_model.pb").is_file() or (folder / EXTRA_FOLDER).is_dir():
        yield folder
    if folder.is_dir():
        there = {path for path in folder.iterdir() if path.suffix in MODEL_SUFFIXES}
        yield from sorted(there.union(listed_models(folder)))


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The exported model and its outputs on some images; or the reason why it is not available."""

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
                problem=f"changed since the export: {shown}",
            )
        asked = [facts.get(name) for name in ("judged_on", "num_images", "calibrated_on")]
        key = f"{facts['variables_sha256']} {facts['input']} {asked}"
        if key not in models:
            models[key] = _run_model(facts, images, num_images)
        model = models[key]
        if model.network is None:
            if images is not None:
                raise ValueError(
                    f"The model cannot be run on {images}: {model.why_not}. Omit --images."
                )
            inputs, expected = read_reference(facts_folder(path), facts)
            labels, against = (
                None,
                f"the outputs recorded at export, on {len(inputs)} images; {model.why_not}",
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
                against += "; not the images that it was judged on at export"
        against += "" if has_list else "; without checksums, since an older version wrote it"
        verdict = judge(path, inputs, expected, labels=labels)
    except Exception as error:  # after any error with one file, the others are still checked
        words = (
            str(error)
            if isinstance(error, OSError | ValueError)
            else f"{type(error).__name__}: {error}"
        )
        return Checked(path=path, verdict=None, against=against, problem=words)
    problem, accepted = _compare_with_thresholds(verdict, facts["accepted"], path.stem)
    return Checked(path=path, verdict=verdict, against=against, problem=problem, accepted=accepted)


def _exclude_calibration(examples: Examples, calibrated_on: list[str]) -> Examples:
    """Returns the images that were not used to calibrate an int8 file.

    Raises:
        ValueError: If none is left.
    """
    others = ~np.isin(examples.fingerprints(), calibrated_on)
    if not others.any():
        raise ValueError(
            f"All {len(others)} images of {examples.name} were used to calibrate int8, so they "
            f"cannot be used for the judgement. Pass other photographs with --images."
        )
    return examples.those(others)


def _run_model(
    facts: dict[str, Any], images: str | os.PathLike | None, num_images: int | None
) -> _Model:
    network, why_not = _rebuild(facts)
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
        classifier.names_for(network, facts["weights"] or facts["model"]),
        tuple(facts["image_size"]),
    )
    count = num_images or facts.get("num_images", _NUM_IMAGES)
    crop = facts.get("input", {}).get("resize", "resize")
    found = find_examples(chosen, network, names, count, size, crop)
    examples = _exclude_calibration(found, facts.get("calibrated_on", []))
    expected = subject_of(network, size, names).answers(examples.pixels())
    return _Model(network=network, examples=examples, expected=expected)


def _rebuild(facts: dict[str, Any]) -> tuple[keras.Model | None, str]:
    """Rebuilds the exported model, or returns the reason why this is not possible."""
    weights = facts.get("weights")
    if (
        "weights" not in facts
        or not isinstance(weights, str | None)
        or not is_size(facts.get("image_size"))
    ):
        return None, "the model was exported from Python"
    try:
        network = classifier.build(
            facts["model"], weights, tuple(facts["image_size"]), facts.get("pixels")
        )
    except Exception as error:  # the file of the weights may be missing or damaged in any way
        return None, f"the model cannot be rebuilt: {error or type(error).__name__}"
    if variables_sha256(network) != facts["variables_sha256"]:
        return (
            None,
            f"the weights in {weights or facts['model']} have changed since the export",
        )
    return network, ""


def _compare_with_thresholds(
    verdict: Verdict, accepted: dict[str, Any], flavour: str
) -> tuple[str, str]:
    """Returns the reason why a file fails, "" if it passes, and a description of the thresholds."""
    problems, words = [], []
    bound, least = accepted.get("max_error"), accepted.get("top1_agreement")
    if isinstance(bound, dict):
        if flavour not in bound:
            return (
                f"its metadata have no threshold for {flavour!r}, only for {', '.join(bound)}",
                "",
            )
        bound = bound[flavour]
    if bound is None:
        words.append("no max error, since an older version wrote it")
    else:
        words.append(f"max error {bound:.2g}")
        if verdict.max_error > bound:
            problems.append(f"the max error is {verdict.max_error:.2g}, above {bound:.2g}")
    if least is not None:
        words.append(f"top-1 agreement {least:.1%}")
        if verdict.top1_agreement < least:
            problems.append(
                f"the top-1 agreement is {verdict.top1_agreement:.1%}, below {least:.1%}"
            )
    return "; ".join(problems), ", ".join(words)
