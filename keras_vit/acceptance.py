"""What was exported, loaded and run again, and compared with the model: the command `export --check`."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import classifier
from keras_vit.delivery import find_examples
from keras_vit.export.checksums import MODEL_SUFFIXES, damage, has_checksums, listed_models
from keras_vit.export.examples import Examples
from keras_vit.export.metadata import EXTRA_FOLDER, facts_folder, is_size, read_facts, variables_sha256
from keras_vit.export.reference import read_reference
from keras_vit.export.verdicts import Verdict, judge
from keras_vit.export.versions import latest, versions

_MOST_SHOWN = 5  # damaged files


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What came of the check of one export.

    Attributes:
        path: Folder of a SavedModel, or file.
        verdict: How far it is from the model; None if it could not be run.
        against: What it was compared with, in words.
        problem: Why it did not pass; "" if it did.
    """

    path: Path
    verdict: Verdict | None
    against: str
    problem: str

    def text(self) -> str:
        """Returns a paragraph for the terminal."""
        lines = [f"{'FAILED' if self.problem else 'OK':6}  {self.path}"]
        if self.verdict is not None:
            found = self.verdict
            lines.append(
                f"        {found.top1_agreement:.1%} of {found.num_images} images have the same answer; "
                f"outputs differ by {found.mean_error:.2g}, at most {found.max_error:.2g}"
            )
            lines.append(f"        {found.size_bytes / 1e6:,.1f} MB, {found.latency_ms:.1f} ms an image")
        lines.append(f"        against {self.against}")
        return "\n".join([*lines, *([f"        {self.problem}"] if self.problem else [])])


def check(
    folder: str | os.PathLike, *, images: str | os.PathLike | None = None, num_images: int = 100
) -> Iterator[Checked]:
    """Yields the verdict on every file of an export: each is run in a fresh process that does not know this package.

    Files that are not what was written, by their checksums, are not run.

    The model is built again from the weights that it was exported from, and both are asked about `images`. Where the
    weights are not there any more, or have changed, or the export was made of a model in Python, the answers that the
    model gave when it was exported are taken; they lie beside each export.

    Args:
        folder: Of the export: the latest versions of all its formats are checked; or one version, or one file.
        images: As in `keras_vit.delivery.deliver`; default: those that the export was judged on, if they are there.
        num_images: How many of them at most.

    Raises:
        ValueError: If there is no export.
    """
    models: dict[str, _Model] = {}  # those of several formats are one and the same
    for path in find_exports(folder):
        yield _check(path, images, num_images, models)


def find_exports(folder: str | os.PathLike) -> list[Path]:
    """Returns SavedModels and files: of a folder of versions the latest of each format, of a version all.

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
            f"There is no export in {folder}: no version with a SavedModel or {', '.join(MODEL_SUFFIXES)}."
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


def _check(path: Path, images: str | os.PathLike | None, num_images: int, models: dict[str, _Model]) -> Checked:
    against = "nothing"
    try:
        facts = read_facts(path)
        has_list = "checksums" in facts or has_checksums(path)
        found = damage(path) if has_list else []
        if found:
            shown = ", ".join(found[:_MOST_SHOWN]) + (
                f" and {len(found) - _MOST_SHOWN} more" * (len(found) > _MOST_SHOWN)
            )
            return Checked(path=path, verdict=None, against="its checksums", problem=f"not as it was exported: {shown}")
        key = f"{facts['variables_sha256']} {facts['input']['image_size']}"
        if key not in models:
            models[key] = _asked(facts, images, num_images)
        model = models[key]
        if model.network is None:
            if images is not None:
                raise ValueError(f"The model cannot be asked about {images}: {model.why_not}. Leave out --images.")
            inputs, expected = read_reference(facts_folder(path), facts)
            labels, against = None, f"its answers on {len(inputs)} images when it was exported; {model.why_not}"
        else:
            taken = facts["input"]["dtype"] == "uint8"
            chosen = _others(model.examples, facts, path)
            examples, expected = model.examples.those(chosen), model.expected[chosen]
            inputs = examples.pixels() if taken else examples.as_taken_by(model.network)
            labels, against = examples.labels, f"the model on {len(inputs)} images: {examples.name}"
        against += "" if has_list else "; it has no checksums, so it is an older one"
        verdict = judge(path, inputs, expected, labels=labels)
    except Exception as error:  # whatever is wrong with one file, the others are checked
        words = str(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}"
        return Checked(path=path, verdict=None, against=against, problem=words)
    return Checked(path=path, verdict=verdict, against=against, problem=_problem(verdict, facts["accepted"], path.stem))


def _others(examples: Examples, facts: dict[str, Any], path: Path) -> np.ndarray:
    """Places of the images that did not set the ranges of an int8 file; of all if none is left."""
    if path.stem != "int8":
        return np.arange(len(examples.images))
    others = ~np.isin(examples.fingerprints(), facts.get("calibrated_on", []))
    return np.flatnonzero(others if others.any() else ~others)


def _asked(facts: dict[str, Any], images: str | os.PathLike | None, num_images: int) -> _Model:
    network, why_not = _rebuilt(facts)
    if network is None:
        return _Model(why_not=why_not)
    chosen = images or facts.get("judged_on")
    if images is None and chosen is not None and not os.path.exists(chosen) and not chosen.startswith("tfds:"):
        chosen = None
    names, size = classifier.class_names(facts["weights"] or facts["model"]), tuple(facts["image_size"])
    examples = find_examples(chosen, network, names, num_images, size)
    expected = network.predict(examples.as_taken_by(network), verbose=0)
    return _Model(network=network, examples=examples, expected=expected)


def _rebuilt(facts: dict[str, Any]) -> tuple[keras.Model | None, str]:
    """The model that was exported, or why it cannot be had."""
    weights = facts.get("weights")
    if "weights" not in facts or not isinstance(weights, str | None) or not is_size(facts.get("image_size")):
        return None, "it was exported from Python"
    try:
        network = classifier.build(facts["model"], weights, tuple(facts["image_size"]), facts.get("pixels"))
    except Exception as error:  # whatever became of the file of the weights
        return None, f"it cannot be built again: {error or type(error).__name__}"
    if variables_sha256(network) != facts["variables_sha256"]:
        return None, f"the weights in {weights or facts['model']} are others than those that were exported"
    return network, ""


def _problem(verdict: Verdict, accepted: dict[str, Any], flavour: str) -> str:
    problems, bound = [], accepted.get("max_error", np.inf)
    if isinstance(bound, dict):
        bound = bound.get(flavour, 0.0)
    if verdict.max_error > bound:
        problems.append(f"differs by {verdict.max_error:.2g}, more than {bound:.2g}")
    least = accepted.get("top1_agreement", 0.0)
    # Asked about other images than when it was exported, or about fewer: two standard errors are chance.
    if verdict.top1_agreement < least - 2 * np.sqrt(least * (1 - least) / verdict.num_images):
        problems.append(f"agrees on {verdict.top1_agreement:.1%}, much less than {least:.1%}")
    return "; ".join(problems)
