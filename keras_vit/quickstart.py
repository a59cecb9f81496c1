"""Pre-training on fractals, fine-tuning on few labels, export and inference of a small ViT.

`main` calls the functions below it in their order. They use the public functions of the package;
inside the package, names such as `keras_vit.application` are imported from their modules. Nothing is
downloaded.

    python -m keras_vit quickstart --output=quickstart_output
"""

import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.analyze.attention import attention_maps, grid_of_model
from keras_vit.applications import application
from keras_vit.data.pipeline import evaluation_batches
from keras_vit.data.sources import fractals
from keras_vit.drawing import picture
from keras_vit.export.report import text_table
from keras_vit.export.saved_model import saved_model
from keras_vit.export.tflite import tflite
from keras_vit.export.verdicts import Verdict, judge, run
from keras_vit.export.versions import latest
from keras_vit.extras import absent
from keras_vit.imagenet import preprocess_input
from keras_vit.models.ends import replace_head
from keras_vit.variants import VIT_VARIANTS
from keras_vit.weights.save import save_checkpoint
from keras_vit.writing import write_atomically

# A small model with patches of 4 pixels: 8 x 8 at 32 pixels, 12 x 12 at 48 pixels.
DIGITS_ROW = dataclasses.replace(
    VIT_VARIANTS["ViT_Ti16"],
    name="ViT_Digits",
    patch_size=4,
    width=64,
    depth=4,
    num_heads=4,
    mlp_dim=256,
    source="keras_vit/quickstart.py",
)
digits_vit = application(DIGITS_ROW)  # in the same way, `keras_vit.ViT_B16` is created from its row
# Fixed positions, since learned ones need more training.
OPTIONS = {"position_embedding": "sincos2d"}
LOW, HIGH = 32, 48  # pixels
NUM_FRACTALS, FRACTALS_EACH = 50, 80  # classes, and pictures per class
LABELS_EACH = 4  # labels per class; 40 of the 1,437 digits are used
CURVE_EVERY = 5  # epochs between evaluations
JUDGED_ON = 100  # held-out digits on which every exported file is compared

ARTEFACTS = {
    "vit_fractals.npz": "weights pre-trained on fractals, for `weights=` at any image size",
    "curves.png": "accuracy with and without pre-training",
    "saved_model": "the fine-tuned model for TensorFlow Serving; each run adds a version",
    "tflite": "the fine-tuned model for phones, from float32 to int8, with a report",
    "digit.jpg": "the image that the exported files classified",
    "attention.png": "ten digits with the attention of the model",
}
NEXT = """Next steps:
  python -m keras_vit info ViT_B16
      print size, cost and weights of a published model
  python -m keras_vit predict PHOTO.jpg
      classify a photo; downloads ViT-B/16 once (330 MB)
  python -m keras_vit finetune --data=DIR --output=DIR
      fine-tune a model on your own folders of photos
  python -m keras_vit export --output=DIR
      export a model to TensorFlow Serving, TFLite, ONNX and OpenVINO
  python -m keras_vit verify FILE.npz
      verify that a checkpoint is read correctly
In Python, start with `keras_vit.ViT_B16(weights="imagenet")`; see README.md."""


class Digits(NamedTuple):
    """Images, (N, 8, 8) grey values in [0, 1], and labels from 0 to 9."""

    images: np.ndarray
    labels: np.ndarray


def main(
    output_dir: str = "quickstart_output", *, pretrain_epochs: int = 8, finetune_epochs: int = 30
) -> None:
    """Runs all steps, and prints a table of results and the list of created files.

    Args:
        output_dir: Output folder. Files of an earlier run are replaced; exports get a new version.
        pretrain_epochs: Epochs on the fractals, at 32 pixels.
        finetune_epochs: Epochs on the labelled digits, at 48 pixels.

    Raises:
        ImportError: If an optional package is absent; the message names the packages to install.
        OSError: If `output_dir` cannot be written.
    """
    check_extras()
    output = open_folder(output_dir)
    checkpoint, curves, served, phones, photo, figure = (output / name for name in ARTEFACTS)
    keras.utils.set_random_seed(0)
    train, test = load_digits()
    few = some_of_each(train)
    table = Table()

    with table.step("draw fractals") as row:
        drawn, kinds = draw_fractals()
        row.result = f"{len(kinds):,} of {NUM_FRACTALS} classes, {LOW} px"

    with table.step("pre-train a small ViT on them") as row:
        small = digits_vit(weights=None, input_shape=(LOW, LOW, 3), classes=NUM_FRACTALS, **OPTIONS)
        shares = fit(small, drawn, kinds, pretrain_epochs, learning_rate=5e-3, batch_size=64)
        row.result = f"{small.count_params():,} parameters; accuracy {shares[-1]:.0%}"

    with table.step("write a checkpoint") as row:
        save_checkpoint(small, checkpoint)
        row.result = f"{checkpoint.stat().st_size / 1e6:.1f} MB, as Google's npz"

    with table.step(f"fine-tune it on {len(few.labels)} digits of {HIGH} px") as row:
        trunk = digits_vit(
            weights=checkpoint, input_shape=(HIGH, HIGH, 3), classes=NUM_FRACTALS, **OPTIONS
        )
        model = replace_head(trunk, classes=10)
        pretrained = fit(model, pixels(few.images, HIGH), few.labels, finetune_epochs, test=test)
        row.result = said(pretrained, test)

    with table.step("train the same model from scratch") as row:
        other = digits_vit(weights=None, input_shape=(HIGH, HIGH, 3), classes=10, **OPTIONS)
        scratch = fit(other, pixels(few.images, HIGH), few.labels, finetune_epochs, test=test)
        row.result = said(scratch, test)

    with table.step("draw both learning curves") as row:
        draw_curves(
            {"pre-trained on fractals": pretrained, "from scratch": scratch},
            finetune_epochs,
            curves,
        )
        row.result = f"{pretrained[-1] - scratch[-1]:+.1%} from pre-training"

    with table.step("export the model for servers and phones") as row:
        verdicts = export(model, test, served, phones)
        row.result = f"{len(verdicts)} files"
        print(text_table(verdicts))

    with table.step("classify a JPEG with two exported files") as row:
        write_photo(photo, test.images[0])
        row.result = compare(
            ask(served, phones, photo), model.predict(read(photo), verbose=0)[0], test.labels[0]
        )

    with table.step("draw the attention") as row:
        draw_attention(model, test, figure)
        row.result = "one held-out digit of each class"

    print(f"\n{table}\n\nFiles in {output.resolve()}:")
    for name, meaning in ARTEFACTS.items():
        print(f"  {name:16}  {meaning}")
    print(f"\n{NEXT}")


def check_extras() -> None:
    """Checks for the optional packages before the training."""
    try:
        import ai_edge_litert.interpreter  # noqa: F401
        import ai_edge_quantizer  # noqa: F401
        import matplotlib.figure  # noqa: F401
        import sklearn.datasets  # noqa: F401
    except ImportError as error:
        raise absent("quickstart", "The quickstart needs more packages", error) from error


def open_folder(output_dir: str) -> Path:
    """Creates the output folder and checks that it is writable."""
    output = Path(output_dir).expanduser()
    try:
        output.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=output).close()
    except OSError as error:
        message = f"Cannot write to {output.resolve()}: {error.strerror}. Choose another folder with --output=FOLDER."
        raise OSError(message) from error
    return output


def load_digits() -> tuple[Digits, Digits]:
    """Returns 1,437 handwritten digits for training and 360 for testing."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    flat, labels = load(return_X_y=True)  # 64 grey values from 0 to 16
    images = flat.reshape(-1, 8, 8).astype("float32") / 16
    split = train_test_split(images, labels, test_size=360, stratify=labels, random_state=0)
    return Digits(split[0], split[2]), Digits(split[1], split[3])


def some_of_each(digits: Digits) -> Digits:
    """Returns the first few digits of each class."""
    chosen = np.concatenate(
        [np.flatnonzero(digits.labels == digit)[:LABELS_EACH] for digit in range(10)]
    )
    return Digits(digits.images[chosen], digits.labels[chosen])


def draw_fractals() -> tuple[np.ndarray, np.ndarray]:
    """Returns pictures of random iterated function systems, (N, 32, 32, 3) in [-1, 1], and the index
    of the system of each.
    """
    source = fractals(NUM_FRACTALS, images_per_class=FRACTALS_EACH, image_size=LOW)
    batches = list(evaluation_batches(source, [], batch_size=source.num_examples // 8))
    images, labels = (np.concatenate([batch[part].numpy() for batch in batches]) for part in (0, 1))
    return preprocess_input(images.astype("float32")), labels


def pixels(images: np.ndarray, size: int) -> np.ndarray:
    """Converts (N, 8, 8) in [0, 1] to (N, size, size, 3) in [-1, 1], as models of this package take."""
    resized = keras.ops.image.resize(
        images[..., None] * 255.0, (size, size), interpolation="bilinear"
    )
    return preprocess_input(np.repeat(keras.ops.convert_to_numpy(resized), 3, axis=-1))


def fit(
    model: keras.Model,
    images: np.ndarray,
    labels: np.ndarray,
    epochs: int,
    *,
    learning_rate: float = 2e-3,
    batch_size: int = 20,
    test: Digits | None = None,
) -> list[float]:
    """Trains with Muon, warm-up, cosine decay, gradient clipping, and random shifts of up to 5 %.

    Returns:
        The training accuracy after each epoch; with a test set, its accuracy every five epochs.
    """
    steps = epochs * -(-len(labels) // batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 5, warmup_target=learning_rate, warmup_steps=steps // 5
    )
    optimizer = keras.optimizers.Muon(
        schedule, weight_decay=0.05, global_clipnorm=1.0, exclude_layers=["predictions"]
    )
    shift = keras.layers.RandomTranslation(0.05, 0.05, fill_mode="nearest", seed=0)
    trained = keras.Sequential([shift, model])
    trained.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    # Without a terminal, print one line per epoch: a progress bar would print hundreds of lines.
    verbose = 1 if sys.stdout.isatty() else 2
    options = {"batch_size": batch_size, "epochs": epochs, "verbose": verbose}
    if test is None:
        return trained.fit(images, labels, **options).history["accuracy"]
    unseen, every = (pixels(test.images, HIGH), test.labels), min(CURVE_EVERY, epochs)
    options |= {"validation_data": unseen, "validation_freq": every, "validation_batch_size": 120}
    return trained.fit(images, labels, **options).history["val_accuracy"]


def said(shares: list[float], test: Digits) -> str:
    """Formats the last point of a curve."""
    return f"accuracy {shares[-1]:.1%} on {len(test.labels)} held-out digits"


def draw_curves(curves: dict[str, list[float]], epochs: int, path: Path) -> None:
    """Draws the accuracy on held-out digits against the epochs of fine-tuning."""
    with picture(path, 6.5, 4) as figure:
        axes = figure.subplots()
        for name, shares in curves.items():
            every = epochs / len(shares)
            axes.plot(
                every * np.arange(1, len(shares) + 1),
                shares,
                "o-",
                label=f"{name}: {shares[-1]:.1%}",
            )
        axes.set(
            xlabel=f"epochs, {10 * LABELS_EACH} labelled digits each",
            ylabel="accuracy on held-out digits",
            ylim=(0, 1),
        )
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.legend(loc="lower right")


def write_photo(photo: Path, image: np.ndarray) -> None:
    """Writes a digit as a grey JPEG of 96 x 96 pixels."""
    resized = keras.ops.image.resize(image[..., None] * 255.0, (96, 96), interpolation="bicubic")
    with write_atomically(photo) as partial:
        keras.utils.save_img(
            partial, np.clip(keras.ops.convert_to_numpy(resized), 0, 255), scale=False
        )


def read(photo: Path) -> np.ndarray:
    """Reads an image file of any size as a batch of one."""
    image = keras.utils.load_img(photo, target_size=(HIGH, HIGH), interpolation="bilinear")
    return preprocess_input(keras.utils.img_to_array(image)[None])


def export(model: keras.Model, test: Digits, served: Path, phones: Path) -> list[Verdict]:
    """Exports a SavedModel and all TFLite flavours, and compares each on held-out digits."""
    asked = pixels(test.images[: 2 * JUDGED_ON], HIGH)  # half of them calibrate int8
    names = [str(digit) for digit in range(10)]
    # `min_agreement=0` writes all files; the table shows their agreement.
    verdicts = tflite(model, phones, class_names=names, images=asked, min_agreement=0)
    folder, judged = (
        saved_model(model, served, class_names=names, images=asked),
        asked[: verdicts[0].num_images],
    )
    return [judge(folder, judged, model.predict(judged, verbose=0), name="SavedModel"), *verdicts]


def ask(served: Path, phones: Path, photo: Path) -> np.ndarray:
    """Returns the probabilities of a TFLite file for a photo, and compares its class with that of the
    SavedModel, which decodes the JPEG itself.
    """
    file = np.array([photo.read_bytes()])
    best = run(latest(served), file, signature="serving_default").outputs[0]
    answer = run(latest(phones) / "dynamic_int8.tflite", read(photo)).outputs[0]
    if best[0] != answer.argmax():
        print(f"    SavedModel: {best[0]:.0f}; TFLite: {answer.argmax()}")
    return answer


def compare(given: np.ndarray, expected: np.ndarray, label: int) -> str:
    """Describes a prediction, and its difference from that of the Keras model."""
    answer, difference = given.argmax(), np.abs(given - expected).max()
    sure = f"predicted {answer} ({given[answer]:.1%}), true {label}"
    return f"{sure}; int8 differs from the Keras model by {difference:.1g}"


def draw_attention(model: keras.Model, digits: Digits, path: Path) -> None:
    """Draws a digit of each class with its prediction, and below it the attention of the class token.

    Wrong predictions are red.
    """
    images = pixels(
        digits.images[[int(np.argmax(digits.labels == digit)) for digit in range(10)]], HIGH
    )
    scores, attention = model.predict(images, verbose=0), class_attention(model, images)
    with picture(path, 12.5, 3.3, plain=True) as figure:
        axes = figure.subplots(2, 10, subplot_kw={"xticks": [], "yticks": []})
        for digit, (above, below) in enumerate(axes.T):
            answer = scores[digit].argmax()
            above.set_title(
                f"{answer}   {scores[digit, answer]:.0%}",
                color="black" if answer == digit else "crimson",
            )
            above.imshow(images[digit] / 2 + 0.5)
            below.imshow(attention[digit], cmap="inferno")
        axes[0, 0].set_ylabel(f"{HIGH} x {HIGH} pixels")
        axes[1, 0].set_ylabel("attention")
        figure.suptitle(
            "Held-out digits with predictions, and the attention of the class token to the patches"
        )


def class_attention(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Returns the attention of the class token to the patches, (B, rows, columns), in the last
    block, averaged over the heads.
    """
    last_BANN = attention_maps(model, images)[-1]
    return last_BANN[:, :, 0, 1:].mean(axis=1).reshape(-1, *grid_of_model(model, images.shape[1:3]))


@dataclasses.dataclass(kw_only=True, slots=True)
class Row:
    """The title, result and time of a step."""

    title: str
    result: str = ""
    seconds: float = 0.0


class Table:
    """The steps of a run; `str(table)` formats them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Row]:
        """Prints the title of a step, measures the time of the block, and prints its result."""
        row = Row(title=title)
        print(f"\n[{len(self.rows) + 1}] {title} ...", flush=True)
        start = time.perf_counter()
        yield row
        row.seconds = time.perf_counter() - start
        self.rows.append(row)
        print(f"    {row.result}", flush=True)

    def __str__(self) -> str:
        width = max(len(row.title) for row in self.rows)
        lines = [f"{row.title:{width}}  {row.seconds:5.1f} s  {row.result}" for row in self.rows]
        total = sum(row.seconds for row in self.rows)
        return "\n".join([*lines, f"{'all steps':{width}}  {total:5.1f} s"])
