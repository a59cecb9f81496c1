"""The first full run: a small ViT learns from fractals, then digits from a few labels, and is
exported and asked.

Read it from top to bottom: `main` is the story, the functions below it are its steps in their
order. It uses the package as you would. You write `keras_vit.application` and
`keras_vit.save_checkpoint`; inside the package the same names are imported from their modules.
Nothing is downloaded.

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

# A row of our own. It sees images of 32 pixels as 8 x 8 patches, and those of 48 pixels as 12 x 12.
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
digits_vit = application(DIGITS_ROW)  # as `keras_vit.ViT_B16` is made of its row
# Fixed positions: learned ones take longer than we have here.
OPTIONS = {"position_embedding": "sincos2d"}
LOW, HIGH = 32, 48  # pixels
NUM_FRACTALS, FRACTALS_EACH = 50, 80  # classes, and pictures of each
LABELS_EACH = 4  # of the 1,437 digits, forty have a label
CURVE_EVERY = 5  # epochs
JUDGED_ON = 100  # held-out digits that every exported file is asked about

ARTEFACTS = {
    "vit_fractals.npz": "what was learned from fractals, for `weights=` at any size",
    "curves.png": "with and without pre-training",
    "saved_model": "the fine-tuned model for TensorFlow Serving, a new version with each run",
    "tflite": "the same for phones, from float32 to int8, with a report",
    "digit.jpg": "the image that was asked about",
    "attention.png": "ten digits, and where the model looks",
}
NEXT = """What next:
  python -m keras_vit info ViT_B16        a published model: its size, its cost, its weights
  python -m keras_vit predict PHOTO.jpg   names what is on a photo; downloads ViT-B/16 once (330 MB)
  python -m keras_vit finetune --data=DIR teaches a model the classes of your own folders of photos
  python -m keras_vit export              writes a model for TensorFlow Serving, phones, ONNX and OpenVINO
  python -m keras_vit verify FILE.npz     proves that a checkpoint is read correctly
In Python: `keras_vit.ViT_B16(weights="imagenet")`; README.md goes on from there."""


class Digits(NamedTuple):
    """(N, 8, 8) grey values in [0, 1], and which digit each one is."""

    images: np.ndarray
    labels: np.ndarray


def main(
    output_dir: str = "quickstart_output", *, pretrain_epochs: int = 8, finetune_epochs: int = 30
) -> None:
    """Runs every step, then prints a table of results and where the artefacts are.

    Args:
        output_dir: Where the artefacts go. Those of an earlier run are replaced; exports get a new
            version.
        pretrain_epochs: Passes over the fractals at 32 pixels.
        finetune_epochs: Passes over the digits that have a label, at 48 pixels.

    Raises:
        ImportError: If scikit-learn or matplotlib is absent; the message says what to install.
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
        row.result = f"{len(kinds):,} of {NUM_FRACTALS} kinds, {LOW} px"

    with table.step("pre-train a small ViT on them") as row:
        small = digits_vit(weights=None, input_shape=(LOW, LOW, 3), classes=NUM_FRACTALS, **OPTIONS)
        shares = fit(small, drawn, kinds, pretrain_epochs, learning_rate=5e-3, batch_size=64)
        row.result = f"{small.count_params():,} parameters; {shares[-1]:.0%} of the fractals named"

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

    with table.step("the same from scratch") as row:
        other = digits_vit(weights=None, input_shape=(HIGH, HIGH, 3), classes=10, **OPTIONS)
        scratch = fit(other, pixels(few.images, HIGH), few.labels, finetune_epochs, test=test)
        row.result = said(scratch, test)

    with table.step("draw both curves") as row:
        draw_curves(
            {"pre-trained on fractals": pretrained, "from scratch": scratch},
            finetune_epochs,
            curves,
        )
        row.result = f"{pretrained[-1] - scratch[-1]:+.1%} from pre-training"

    with table.step("export it for servers and phones") as row:
        verdicts = export(model, test, served, phones)
        row.result = f"{len(verdicts)} files"
        print(text_table(verdicts))

    with table.step("ask two of the files about a JPEG") as row:
        write_photo(photo, test.images[0])
        row.result = compare(
            ask(served, phones, photo), model.predict(read(photo), verbose=0)[0], test.labels[0]
        )

    with table.step("draw its attention") as row:
        draw_attention(model, test, figure)
        row.result = "one held-out digit of each kind"

    print(f"\n{table}\n\nIn {output.resolve()}:")
    for name, meaning in ARTEFACTS.items():
        print(f"  {name:16}  {meaning}")
    print(f"\n{NEXT}")


def check_extras() -> None:
    """Now, not after the training."""
    try:
        import ai_edge_litert.interpreter  # noqa: F401
        import ai_edge_quantizer  # noqa: F401
        import matplotlib.figure  # noqa: F401
        import sklearn.datasets  # noqa: F401
    except ImportError as error:
        raise absent("quickstart", "The quickstart needs more than the package", error) from error


def open_folder(output_dir: str) -> Path:
    """Makes the folder and tries it."""
    output = Path(output_dir)
    try:
        output.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=output).close()
    except OSError as error:
        message = f"Cannot write to {output.resolve()}: {error.strerror}. Name another folder with --output=FOLDER."
        raise OSError(message) from error
    return output


def load_digits() -> tuple[Digits, Digits]:
    """Returns 1,437 handwritten digits to train on, and 360 that the model never learns from."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    flat, labels = load(return_X_y=True)  # 64 grey values from 0 to 16
    images = flat.reshape(-1, 8, 8).astype("float32") / 16
    split = train_test_split(images, labels, test_size=360, stratify=labels, random_state=0)
    return Digits(split[0], split[2]), Digits(split[1], split[3])


def some_of_each(digits: Digits) -> Digits:
    """The first few of each kind: all others might as well have no label."""
    chosen = np.concatenate(
        [np.flatnonzero(digits.labels == digit)[:LABELS_EACH] for digit in range(10)]
    )
    return Digits(digits.images[chosen], digits.labels[chosen])


def draw_fractals() -> tuple[np.ndarray, np.ndarray]:
    """Pictures of random iterated function systems, (N, 32, 32, 3) in [-1, 1], and which system
    each one is of.
    """
    source = fractals(NUM_FRACTALS, images_per_class=FRACTALS_EACH, image_size=LOW)
    batches = list(evaluation_batches(source, [], batch_size=source.num_examples // 8))
    images, labels = (np.concatenate([batch[part].numpy() for batch in batches]) for part in (0, 1))
    return preprocess_input(images.astype("float32")), labels


def pixels(images: np.ndarray, size: int) -> np.ndarray:
    """(N, 8, 8) in [0, 1] to (N, size, size, 3) in [-1, 1], which is what every model of this
    package expects.
    """
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
    """Muon, warm-up and cosine decay, gradients clipped at norm 1; each image is shifted by up to 5
    %, at random.

    Returns the share of right answers after each epoch, or after every fifth on the test set where
    there is one.
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
    # a bar, or one line per epoch where it would become hundreds
    verbose = 1 if sys.stdout.isatty() else 2
    options = {"batch_size": batch_size, "epochs": epochs, "verbose": verbose}
    if test is None:
        return trained.fit(images, labels, **options).history["accuracy"]
    unseen, every = (pixels(test.images, HIGH), test.labels), min(CURVE_EVERY, epochs)
    options |= {"validation_data": unseen, "validation_freq": every, "validation_batch_size": 120}
    return trained.fit(images, labels, **options).history["val_accuracy"]


def said(shares: list[float], test: Digits) -> str:
    """The last point of a curve in words."""
    return f"{shares[-1]:.1%} of {len(test.labels)} held-out digits"


def draw_curves(curves: dict[str, list[float]], epochs: int, path: Path) -> None:
    """The share of held-out digits that are named, over the epochs of fine-tuning."""
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
            ylabel="held-out digits named",
            ylim=(0, 1),
        )
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.legend(loc="lower right")


def write_photo(photo: Path, image: np.ndarray) -> None:
    """A grey JPEG of 96 x 96 pixels, as if it came from elsewhere."""
    resized = keras.ops.image.resize(image[..., None] * 255.0, (96, 96), interpolation="bicubic")
    with write_atomically(photo) as partial:
        keras.utils.save_img(
            partial, np.clip(keras.ops.convert_to_numpy(resized), 0, 255), scale=False
        )


def read(photo: Path) -> np.ndarray:
    """An image file of any size to a batch of one."""
    image = keras.utils.load_img(photo, target_size=(HIGH, HIGH), interpolation="bilinear")
    return preprocess_input(keras.utils.img_to_array(image)[None])


def export(model: keras.Model, test: Digits, served: Path, phones: Path) -> list[Verdict]:
    """A SavedModel and all flavours of TFLite, each judged in a process without Keras, on digits it
    never learned from.

    None is refused here, whatever it answers: the table says how well it does.
    """
    asked = pixels(test.images[: 2 * JUDGED_ON], HIGH)  # half of them set the ranges of int8
    names = [str(digit) for digit in range(10)]
    verdicts = tflite(model, phones, class_names=names, images=asked, min_agreement=0)
    folder, judged = (
        saved_model(model, served, class_names=names, images=asked),
        asked[: verdicts[0].num_images],
    )
    return [judge(folder, judged, model.predict(judged, verbose=0), name="SavedModel"), *verdicts]


def ask(served: Path, phones: Path, photo: Path) -> np.ndarray:
    """The ten probabilities of the smallest file for phones; the SavedModel decodes the JPEG itself
    and must agree.
    """
    file = np.array([photo.read_bytes()])
    best = run(latest(served), file, signature="serving_default").outputs[0]
    answer = run(latest(phones) / "dynamic_int8.tflite", read(photo)).outputs[0]
    if best[0] != answer.argmax():
        print(f"    the SavedModel says {best[0]:.0f}, the file for phones {answer.argmax()}")
    return answer


def compare(given: np.ndarray, expected: np.ndarray, label: int) -> str:
    """The answer in words, and how far it is from the Keras model's."""
    answer, difference = given.argmax(), np.abs(given - expected).max()
    sure = f"it says {answer} ({given[answer]:.1%} sure), it is {label}"
    return f"{sure}; 8 bits are off the Keras model by {difference:.1g}"


def draw_attention(model: keras.Model, digits: Digits, path: Path) -> None:
    """One digit of each kind with the model's answer, red if wrong; below it the attention of the
    class token.
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
            "Held-out digits with the model's answer, and which patches its class token attends to"
        )


def class_attention(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """(B, rows, columns): the attention of the class token to each patch, last block, mean of the
    heads.
    """
    last_BANN = attention_maps(model, images)[-1]
    return last_BANN[:, :, 0, 1:].mean(axis=1).reshape(-1, *grid_of_model(model, images.shape[1:3]))


@dataclasses.dataclass(kw_only=True, slots=True)
class Row:
    """One step: what was done, what came of it, how long it took."""

    title: str
    result: str = ""
    seconds: float = 0.0


class Table:
    """The steps of a run; `str(table)` is what is printed at its end."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Row]:
        """Announces a step, times what stands under `with`, and says what came of it."""
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
