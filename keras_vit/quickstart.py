"""The first full run: a small ViT from nothing to a served image, on data that comes with scikit-learn.

Read it from top to bottom: it uses the package as you would, though you will write `keras_vit.application` where
it imports from a module. Each step prints a line, and leaves what the next one starts from.

    python -m keras_vit quickstart --output=quickstart_output
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from keras_vit.applications import application
from keras_vit.imagenet import preprocess_input
from keras_vit.variants import VIT_VARIANTS
from keras_vit.weights.save import save_checkpoint

# A row of our own: it sees digits of 32 pixels as 8 x 8 patches, and those of 48 pixels as 12 x 12.
DIGITS_VIT = dataclasses.replace(
    VIT_VARIANTS["ViT_Ti16"],
    name="ViT_Digits",
    patch_size=4,
    width=64,
    depth=4,
    num_heads=4,
    mlp_dim=256,
)
LOW, HIGH = 32, 48  # pixels
BATCH_SIZE = 32


def main(output_dir: str = "quickstart_output", *, pretrain_epochs: int = 10, finetune_epochs: int = 3) -> None:
    """Runs every step and prints a table of results.

    Args:
        output_dir: Where the artefacts go; those of an earlier run are replaced.
        pretrain_epochs: Passes over the training digits at 32 pixels.
        finetune_epochs: Passes at 48 pixels.

    Raises:
        ImportError: If scikit-learn or matplotlib is absent; the message says what to install.
        OSError: If `output_dir` cannot be written.
    """
    output = Path(output_dir)
    output.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(0)
    table = Table()
    (train, train_labels), (test, test_labels) = table.step("load 1,797 digits", load_digits)

    build = application(DIGITS_VIT)
    model = build(weights=None, input_shape=(LOW, LOW, 3), classes=10)
    table.step(
        f"train a ViT of {model.count_params():,} parameters at {LOW} px",
        lambda: fit(model, pixels(train, LOW), train_labels, pretrain_epochs, learning_rate=1e-3),
    )
    table.note(accuracy(model, pixels(test, LOW), test_labels))

    checkpoint = output / "vit_digits.npz"
    table.step("write it as Google would", lambda: save_checkpoint(model, checkpoint))
    larger = table.step(
        f"load it back at {HIGH} px, positions resized",
        lambda: build(weights=checkpoint, input_shape=(HIGH, HIGH, 3), classes=10),
    )
    table.note(accuracy(larger, pixels(test, HIGH), test_labels))
    table.step(
        "fine-tune it",
        lambda: fit(larger, pixels(train, HIGH), train_labels, finetune_epochs, learning_rate=5e-4),
    )
    table.note(accuracy(larger, pixels(test, HIGH), test_labels))

    photo = output / "digit.png"
    keras.utils.save_img(photo, pixels(test[:1], HIGH)[0], scale=True)
    saved_model = output / "saved_model"
    table.step("export a SavedModel", lambda: larger.export(saved_model, verbose=False))
    answer = table.step("reload it and ask about digit.png", lambda: ask(saved_model, photo))
    expected = larger.predict(read(photo), verbose=0)
    table.note(
        f"a {answer.argmax()} ({answer.max():.0%}; it is a {test_labels[0]}), "
        f"{np.abs(answer - expected).max():.0e} off the Keras model"
    )

    figure = output / "attention.png"
    table.step("draw where the model looks", lambda: draw(larger, test, test_labels, figure))
    table.print()
    print(f"\nIn {output.resolve()}:")
    for path, meaning in (
        (checkpoint, "the checkpoint, in Google's layout: weights= takes it, at any size"),
        (saved_model, "the fine-tuned model, for TF Serving and tf.saved_model.load"),
        (photo, "the image that was asked about"),
        (figure, "sample digits, and the attention of the class token"),
    ):
        print(f"  {path.name:16} {meaning}")
    print("\nNext: a published checkpoint.  python -m keras_vit info ViT_B16")


def load_digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns (images, labels) to train on and, held out, to test on; images (N, 8, 8) in [0, 1]."""
    try:
        from sklearn.datasets import load_digits as load
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ImportError("The quickstart needs scikit-learn: pip install keras-vit[quickstart]") from error
    images, labels = load(return_X_y=True)
    split = train_test_split(images.reshape(-1, 8, 8) / 16, labels, test_size=360, stratify=labels, random_state=0)
    return (split[0], split[2]), (split[1], split[3])


def pixels(images: np.ndarray, size: int) -> np.ndarray:
    """(N, 8, 8) in [0, 1] to (N, size, size, 3) in [-1, 1], as every model of this package expects it."""
    resized = keras.ops.image.resize(images[..., None].astype("float32"), (size, size), interpolation="bilinear")
    grey = np.repeat(keras.ops.convert_to_numpy(resized), 3, axis=-1) * 255.0
    return preprocess_input(grey)


def fit(model: keras.Model, images: np.ndarray, labels: np.ndarray, epochs: int, learning_rate: float) -> None:
    """AdamW with warm-up and cosine decay, gradients clipped at norm 1."""
    steps = epochs * -(-len(images) // BATCH_SIZE)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 5, warmup_target=learning_rate, warmup_steps=steps // 5
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.05, global_clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images, labels, batch_size=BATCH_SIZE, epochs=epochs, verbose=1)


def accuracy(model: keras.Model, images: np.ndarray, labels: np.ndarray) -> str:
    """Top-1 on held-out images, as words."""
    guesses = model.predict(images, batch_size=120, verbose=0).argmax(axis=1)
    return f"{np.mean(guesses == labels):.1%} of {len(labels)} held-out digits"


def read(photo: Path) -> np.ndarray:
    """An image file to a batch of one."""
    image = keras.utils.img_to_array(keras.utils.load_img(photo, target_size=(HIGH, HIGH)))
    return preprocess_input(image[None])


def ask(saved_model: Path, photo: Path) -> np.ndarray:
    """The exported model's scores for an image file; nothing of the Keras model is involved."""
    served = keras.layers.TFSMLayer(saved_model, call_endpoint="serve")
    return keras.ops.convert_to_numpy(served(read(photo)))


def draw(model: keras.Model, images: np.ndarray, labels: np.ndarray, path: Path, count: int = 8) -> None:
    """Sample digits above the attention of the class token in the last block, averaged over heads."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("The quickstart needs matplotlib: pip install keras-vit[quickstart]") from error
    batch = pixels(images[:count], HIGH)
    last = model.get_layer(f"encoderblock_{DIGITS_VIT.depth - 1}")
    scores = last.attention_scores(keras.Model(model.input, last.input)(batch))
    grid = model.get_layer("posembed_input").grid
    attention = keras.ops.convert_to_numpy(scores)[:, :, 0, 1:].mean(axis=1).reshape(-1, *grid)
    guesses = model.predict(batch, verbose=0)
    figure = Figure(figsize=(1.5 * count, 3.4), layout="constrained", dpi=120)
    axes = figure.subplots(2, count)
    for index, (above, below) in enumerate(axes.T):
        guess = guesses[index].argmax()
        above.imshow(batch[index] / 2 + 0.5)
        colour = "black" if guess == labels[index] else "crimson"
        above.set_title(f"{guess}  ({guesses[index].max():.0%})", fontsize=11, color=colour)
        below.imshow(batch[index] / 2 + 0.5)
        below.imshow(attention[index], cmap="magma", alpha=0.75, extent=(-0.5, HIGH - 0.5, HIGH - 0.5, -0.5))
        for axis in (above, below):
            axis.set_axis_off()
    figure.suptitle("Held-out digits with the model's guess, and where its class token looks", fontsize=12)
    figure.savefig(path)


class Table:
    """What each step gave, and how long it took."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []

    def step(self, title: str, run: Callable):
        """Runs one step under its title and returns what it returns."""
        print(f"\n{title} ...", flush=True)
        start = time.perf_counter()
        result = run()
        self._rows.append([title, "", f"{time.perf_counter() - start:.1f} s"])
        return result

    def note(self, text: str) -> None:
        """Records the result of the last step."""
        print(text, flush=True)
        self._rows[-1][1] = text

    def print(self) -> None:
        widths = [max(len(row[column]) for row in self._rows) for column in range(3)]
        print()
        for title, result, seconds in self._rows:
            print(f"{title:{widths[0]}}  {seconds:>{widths[2]}}  {result}")
