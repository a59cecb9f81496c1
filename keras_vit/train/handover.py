"""The output of `finetune`: the files of the model, and report sections that show how to use them.

The commands in the report work without changes: paths are absolute, and the folder contains an
example image.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

from keras_vit.data.reading import Unreadable, read_pixels, read_record
from keras_vit.data.sources import Source
from keras_vit.evaluate.accuracy import answer
from keras_vit.evaluate.scorecard import class_table, headline, worst, write_answers, write_pictures
from keras_vit.models.ends import replace_head
from keras_vit.pixels import find_entry
from keras_vit.train.config import RunConfig
from keras_vit.train.front import list_kept
from keras_vit.writing import table, to_one_line, write_atomically, write_text

FILES = {
    "model.keras": "the model, for `keras.models.load_model`: pixels in [-1, 1] to probabilities (softmax)",
    "model.npz": "its weights, for `weights=` at any image size and for `--weights=`",
    "classes.txt": "the class names, one per line, in the order of the probabilities",
    "answers.csv": "each validation image with its class, the prediction and its probability",
    "example.png": "a validation image to try the model",
    "checkpoints": "the state of the run, to resume it; not needed after the run has finished",
}


@dataclass(frozen=True, kw_only=True)
class Order:
    """The arguments of a fine-tuning, with all defaults resolved.

    Attributes:
        model: Name in the table of models, absolute path of a file `model.keras`, or None for a
            model in memory.
        weights: Tag, absolute path, URL, or "none"; None for a file `model.keras`, which contains
            its weights.
        pixels: Range that was declared for such a file, or None.
        data: Absolute path, or None if the data cannot be given on a command line.
        image_size: Side of the images, in pixels.
        settings: Settings of the run.
        folder: Absolute path of the output folder.
    """

    model: str | None
    weights: str | None
    pixels: str | None = None
    data: Path | None
    image_size: int
    settings: RunConfig
    folder: Path

    def command(self) -> str:
        """Returns the command line, or "" if the model or the data have no name."""
        if self.model is None or self.data is None:
            return ""
        flags = {
            "data": self.data,
            "model": self.model,
            "weights": self.weights,
            "pixels": self.pixels,
            "image_size": self.image_size,
            "steps": self.settings.loop.total_steps,
            "batch_size": self.settings.batch_size,
            "learning_rate": self.settings.optimizer.learning_rate,
            "seed": self.settings.seed,
            "output": self.folder,
        }
        return shlex.join(
            [
                "python",
                "-m",
                "keras_vit",
                "finetune",
                *(f"--{name}={value}" for name, value in flags.items() if value is not None),
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Handover:
    """Evaluates the trained model and writes its files. `keras_vit.train.run.run` calls it.

    Attributes:
        order: The arguments of the fine-tuning.
        plan: A description of the fine-tuning, for the report.
    """

    order: Order
    plan: str

    def __call__(self, model: keras.Model, source: Source, folder: Path) -> Sequence[str]:
        settings = self.order.settings
        card = answer(
            model,
            source,
            image_size=self.order.image_size,
            eval_crop=settings.data.eval_crop,
            batch_size=settings.eval_batch_size,
            unreadable=Unreadable(source, record=folder / "unreadable_test.txt"),
        )
        pictures = write_pictures(card, folder)
        write_answers(card, folder / "answers.csv")
        write_text(
            folder / "classes.txt",
            "".join(f"{to_one_line(name)}\n" for name in source.class_names),
        )
        with write_atomically(folder / "example.png") as partial:
            keras.utils.save_img(partial, read_pixels(source, int(card.indices[0])), scale=False)
        save_model(model, folder / "model.keras")
        shown, wrong = len(worst(card)), np.count_nonzero(card.ranks)
        mistakes = f"The {shown} most confident errors of {wrong:,}.\n\n![Errors](errors.png)"
        return [
            headline(card),
            self.plan,
            "## Classes",
            class_table(card),
            *["![Confusion matrix](confusion.png)"] * ("confusion.png" in pictures),
            "## Errors",
            mistakes if "errors.png" in pictures else "None.",
            "## Unreadable images",
            _list_unreadable(folder),
            "## Usage",
            *self._format_usage(),
            "## Files",
            table(["file", "content"], _list_files(model)),
            "## Training",
        ]

    def _format_usage(self) -> Sequence[str]:
        folder, size = self.order.folder, self.order.image_size
        saved, names, photo = (
            json.dumps(str(folder / name)) for name in ("model.keras", "classes.txt", "example.png")
        )
        return [
            self._format_predict_command(),
            f"""In Python:

```python
import keras
from keras_vit.predict import read_photo  # also registers the layers of the model with Keras

model = keras.models.load_model({saved})
with open({names}, encoding="utf-8") as lines:
    class_names = [line.rstrip("\\n") for line in lines]
probabilities = model.predict(read_photo({photo}, ({size}, {size}))[None])[0]
for number in probabilities.argsort()[:-4:-1]:
    print(f"{{probabilities[number]:.1%}}  {{class_names[number]}}")
```""",
            f"""As a SavedModel for TensorFlow Serving, from pixels in [-1, 1] to probabilities:

```python
import keras
import keras_vit  # registers the layers of the model with Keras

keras.models.load_model({saved}).export({json.dumps(str(folder / "saved_model" / "1"))}, verbose=False)
```""",
        ]

    def _format_predict_command(self) -> str:
        command = ["python", "-m", "keras_vit", "predict", str(self.order.folder / "example.png")]
        command += [f"--model={self.order.folder / 'model.keras'}"]
        return f"On the command line:\n\n```sh\n{shlex.join(command)}\n```"


def _list_files(model: keras.Model) -> list[list[str]]:
    files, kept = dict(FILES), list_kept(find_entry(model))
    if kept:
        names = ", ".join(step.name for step in kept)
        files["model.npz"] = f"the weights without the layers in front ({names}), for `weights=`"
    return [[f"`{name}`", text] for name, text in files.items()]


def save_model(model: keras.Model, path: Path) -> None:
    """Adds a softmax to a model that returns logits, and writes it atomically."""
    head = model.get_layer("predictions")
    classifier = replace_head(model, head.units, classifier_activation="softmax")
    classifier.get_layer("predictions").set_weights(head.get_weights())
    with write_atomically(path) as partial:
        classifier.save(partial)


def _list_unreadable(folder: Path) -> str:
    records = [folder / f"unreadable_{part}.txt" for part in ("train", "test")]
    reasons = {place: reason for record in records for place, reason in read_record(record).items()}
    if not reasons:
        return "None."
    lines = (
        f"- `{place}`" + (f": {reason}" if reason else "") for place, reason in reasons.items()
    )
    return "\n".join([f"{len(reasons)}, left out:", "", *lines])
