"""The function `finetune`: fine-tuning without a config.

The defaults are the paper's (table 4, B.1.1), and BiT's where they depend on the amount of data.
`handover.py` writes the output.
"""

import json
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import cost
from keras_vit.data import folders
from keras_vit.data.sources import Source, image_folder
from keras_vit.devices import has_accelerator
from keras_vit.drawing import check_can_draw
from keras_vit.keras_file import is_file, load
from keras_vit.pixels import declare, describe_pixels
from keras_vit.train.config import DataConfig, RunConfig, row_of
from keras_vit.train.front import describe_kept
from keras_vit.train.handover import Handover, Order
from keras_vit.train.loop import LoopConfig
from keras_vit.train.new_head import build_on_trunk, copy_with_new_head, start_sha256
from keras_vit.train.optimizers import OptimizerConfig
from keras_vit.train.run import Procedure, run
from keras_vit.train.schedules import bit_hyperrule
from keras_vit.train.workdir import check_folder
from keras_vit.variants import ViTVariant
from keras_vit.weights import catalog, source
from keras_vit.weights.save import check_can_save
from keras_vit.weights.secrets import without_secrets
from keras_vit.writing import group_by_reason, to_one_line

HELD_OUT = 0.1
_PAPER_BATCH, _CPU_BATCH = 512, 32
_PAPER_SIZE, _PRETRAINED_SIZE = 384, 224
# Images of 384 pixels per micro-batch; of smaller images a micro-batch contains more.
_ROWS, _CPU_ROWS = 16, 8
# Models with more parameters recompute their blocks for the gradient, to save memory.
_LARGE = 200_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferConfig:
    """The recorded config of a run of `finetune`, with all defaults resolved.

    Attributes:
        run: Settings of the run.
        model, weights: Names of the model and its weights; "none" for random weights.
        image_size: Side of the square images, in pixels.
        training, validation: Descriptions of the training and the validation data.
    """

    run: RunConfig
    model: str
    weights: str
    image_size: int
    training: str
    validation: str


@dataclass(frozen=True, kw_only=True)
class Finetuned:
    """The result of `finetune`.

    Attributes:
        model: Model from pixels in [-1, 1] (B, H, W, 3) to probabilities (B, Y).
        class_names: The Y class names, in the order of the probabilities.
        accuracy: Share of the validation images that are classified correctly.
        report: Path of `report.md`.
    """

    model: keras.Model
    class_names: tuple[str, ...]
    accuracy: float
    report: Path


def finetune(
    model: str | keras.Model,
    data: str | os.PathLike | Source,
    output: str | os.PathLike,
    *,
    weights: str | os.PathLike | None = "imagenet21k",
    validation: str | os.PathLike | Source | None = None,
    image_size: int | None = None,
    pixels: str | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float = 0.01,
    seed: int = 0,
) -> Finetuned:
    """Fine-tunes a model on labelled images, and writes the model and a report into `output`.

    The method is the paper's. The head is replaced by one layer of zeros, and positions are
    resized. The optimizer is SGD with momentum 0.9, a cosine schedule, no weight decay and
    gradients clipped at norm 1; the loss is softmax. Training images are cropped (Inception crops)
    and flipped; evaluation uses whole images. The same call on the same folder resumes the run.

    Args:
        model: A name of `keras_vit.list_models()`, a model that this package built, or a file
            `model.keras` of such a model. The model may be nested in another model that scales its
            pixels. Training starts from its weights; the model itself is not modified.
        data: A folder, `data/<class>/*` or `data/train/<class>/*` with `data/test/<class>/*` (also
            val, validation, valid), or a `keras_vit.data.sources.Source`.
        output: Folder for the results: `report.md`, `model.keras`, `model.npz` (for `weights=`),
            `classes.txt` and figures.
        weights: Weights of a named model: a tag, a file, a URL, or None for random weights. The
            default also selects "augreg_in21k", for models whose ImageNet-21k weights have that
            tag.
        validation: Data to evaluate on: a folder with the same classes, or a source. Default: the
            test set in `data`; without one, a tenth of each class, at least one image, is held out.
        image_size: Side of the square images, in pixels. Default: 384 if the weights were trained
            at 224; otherwise the size of the weights or of the given model.
        pixels: Range of the pixels of a given model: "0..255", "0..1" or "-1..1". Default: detected
            by `keras_vit.pixels.pixels_of`.
        steps: Number of updates. Default: `keras_vit.train.schedules.bit_hyperrule`, which is 500
            for fewer than 20,000 images, 10,000 for fewer than 500,000, else 20,000. The warm-up
            takes a fifth of them, at most 500.
        batch_size: Images per update. Default: 512, or 32 without an accelerator, but at most the
            number of images, rounded down to a power of two. A batch is computed in micro-batches,
            so memory does not limit it.
        learning_rate: Peak learning rate. It does not depend on the batch size, because gradients
            are clipped to the same norm.
        seed: Seed of order, crops and dropout.

    Raises:
        ValueError: If model, weights, data, settings and folder do not match, or if `output`
            contains the model that training starts from, or a model that no run of this package
            wrote. These checks run before the training.
        ImportError: If matplotlib is not installed. The message names the package to install.
        OSError: If the weights cannot be loaded, or the folder cannot be written.
        keras_vit.train.Stopped: After SIGTERM or SIGINT, when the state is saved.
        keras_vit.train.Diverged: If the loss, a gradient, a weight or a metric is not finite.

    Example:
        >>> images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3)).astype("uint8")
        >>> source = keras_vit.data.sources.arrays(images, np.arange(20) % 2, ["cat", "dog"])
        >>> model = keras_vit.application(dataclasses.replace(VIT_VARIANTS["ViT_Ti16"], depth=1))
        >>> model = model(weights=None, input_shape=(32, 32, 3))
        >>> done = finetune(model, source, "cats", steps=2)
        Fine-tuning vit_ti16 (787,048 parameters, weights: in memory, sha256 ...) at 32 x 32 pixels.
        Training on 18 images of 2 classes, 9 per class (arrays); validation on 2 other images (10%
        of each class, held out). ...
        >>> done.model.output_shape, done.class_names
        ((None, 2), ('cat', 'dog'))

    Source: arXiv:2010.11929, table 4 and B.1.1; number of steps: arXiv:1912.11370, section 3.3.
    """
    check_can_draw()
    start = _find_start(model, weights, image_size, pixels)
    training, measured, words = _load_data(data, validation)
    settings = _make_settings(training, start, steps, batch_size, learning_rate, seed)
    config = TransferConfig(
        run=settings,
        model=start.name,
        weights=start.recorded_weights,
        image_size=start.image_size,
        training=f"{training.num_examples:,} of {len(training.class_names):,} classes",
        validation=words,
    )
    folder = Path(output).expanduser()
    for place, name in ((data, "data"), (validation, "validation data")):
        if isinstance(place, str | os.PathLike):
            folders.check_outside(folder, place, name)
    _check_keeps_models(folder, start)
    order = Order(
        model=start.source,
        weights=None if start.is_file else start.weights,
        pixels=pixels,
        data=None
        if isinstance(data, Source) or validation is not None
        else Path(data).expanduser().resolve(),
        image_size=start.image_size,
        settings=settings,
        folder=folder.resolve(),
    )
    if (
        check_folder(folder, config, (training, measured))
        and (folder / "results.json").exists()
        and (folder / "model.keras").exists()
    ):
        print(
            f"{folder} already contains this run, and it is finished. To repeat it, choose another "
            "folder.",
            flush=True,
        )
        return _load_result(folder, training)
    plan = _describe_plan(config, start, training, measured, data)
    print(plan, flush=True)
    procedure = Procedure(
        title=f"{start.name} fine-tuned on {_short_name(training)}",
        build=start.build,
        image_size=start.image_size,
        conclude=Handover(order=order, plan=plan),
        command=order.command(),
    )
    run(config, folder, procedure, data=(training, measured))
    return _load_result(folder, training)


def _check_keeps_models(folder: Path, start: "_Start") -> None:
    """Raises a ValueError if the files of the run would replace those of another model."""
    if start.folder is not None and start.folder == folder.resolve():
        raise ValueError(
            f"{folder} contains the model that training starts from, {start.origin}. Its files would "
            "be replaced: choose another `output`."
        )
    there = [name for name in _MODEL_FILES if (folder / name).exists()]
    if there and not (folder / "config.json").exists():
        raise ValueError(
            f"{folder} contains {' and '.join(there)}, but no config.json of a run. The files would "
            "be replaced: choose another `output`, or move them away."
        )


_MODEL_FILES = ("model.keras", "model.npz", "classes.txt")  # that a run writes


@dataclass(frozen=True, kw_only=True)
class _Start:
    """The model from which training starts: its description, and a function that builds it."""

    name: str
    source: str | None  # the name or the file of the model, as on a command line
    weights: str
    recorded_weights: str  # with a hash, unless their content is pinned
    image_size: int
    parameters: int
    build: Callable[[int], keras.Model]
    origin: Path | None = None  # the file of the model, or the file or folder of its weights

    @property
    def folder(self) -> Path | None:
        """The folder of the model or of its weights."""
        if self.origin is None:
            return None
        return self.origin if self.origin.is_dir() else self.origin.parent

    @property
    def is_file(self) -> bool:
        return self.source is not None and is_file(self.source)


def _find_start(
    model: str | keras.Model,
    weights: str | os.PathLike | None,
    image_size: int | None,
    pixels: str | None = None,
) -> _Start:
    if image_size is not None and image_size < 1:
        raise ValueError(f"`image_size` must be at least 1. Received: {image_size}.")
    if isinstance(model, str | os.PathLike) and not is_file(model):
        if pixels not in (None, "-1..1"):
            raise ValueError(
                f"{model} takes pixels from -1 to 1. Leave out `pixels`. Received: {pixels!r}."
            )
        return _find_start_by_name(os.fspath(model), weights, image_size)
    if weights != "imagenet21k":
        raise ValueError(
            "A model in memory or in a file contains its weights. Leave out `weights`, or pass the "
            f"name of a model. Received: weights={weights!r}."
        )
    path = None if isinstance(model, keras.Model) else Path(model).expanduser().resolve()
    given = model if path is None else load(path, any_size=True)
    if len(given.inputs) != 1 or len(given.inputs[0].shape) != 4:
        shapes = [tuple(each.shape) for each in given.inputs]
        raise ValueError(
            "The model must take images (B, H, W, C), and nothing else. Its input shapes: "
            f"{shapes}. Of a masked autoencoder, pass the encoder that its training wrote: the name "
            'of the model, and weights="model.npz".'
        )
    if pixels is not None:
        declare(given, pixels)
    height, width = given.input_shape[1:3]
    if image_size is None and height != width:
        raise ValueError(
            f"`finetune` uses square images, so pass `image_size`. Received: a model of {height} x "
            f"{width} pixels."
        )
    size = image_size or height or _PAPER_SIZE
    if path is not None:
        print(describe_pixels(given, (height or size, width or size)), flush=True)
    copy = copy_with_new_head(given, size, 2)
    check_can_save(copy)
    if kept := describe_kept(given, size):
        print(kept, flush=True)
    described = f"{'in memory' if path is None else path}, sha256 {start_sha256(given, copy)}"
    return _Start(
        name=given.name,
        source=None if path is None else str(path),
        weights=described,
        recorded_weights=described,
        image_size=size,
        parameters=given.count_params(),
        origin=path,
        build=lambda num_classes: copy_with_new_head(given, size, num_classes),
    )


def _find_start_by_name(
    model: str, weights: str | os.PathLike | None, image_size: int | None
) -> _Start:
    row, trained_size = row_of(model, {}), None
    recorded = described = "none"
    origin = None
    if weights is not None:
        weights = os.path.expanduser(weights)
        tags = catalog.list_weights(model)
        if weights == "imagenet21k" and weights not in tags and "augreg_in21k" in tags:
            weights = "augreg_in21k"
        found = source.find(model, weights)
        if found.is_tag and found.row is not None:
            recorded = described = weights
            trained_size = found.row.image_size
        else:
            weights = weights if "://" in weights else str(Path(weights).resolve())
            origin = None if "://" in weights else Path(weights)
            pretrained = source.load(found)
            described = without_secrets(weights)
            recorded = f"{described}, sha256 {pretrained.sha256()}"
            trained_size = pretrained.image_size and pretrained.image_size[0]
    size = image_size or _choose_size(
        row, _PAPER_SIZE if weights is not None else _PRETRAINED_SIZE, trained_size
    )
    return _Start(
        name=model,
        source=model,
        weights=described,
        recorded_weights=recorded,
        image_size=size,
        # raises an error if the image size is not a multiple of the patch size
        parameters=cost.parameters(row, image_size=(size, size)),
        origin=origin,
        build=lambda num_classes: build_on_trunk(row, weights, size, num_classes),
    )


def _choose_size(row: Any, size: int, trained_size: int | None) -> int:
    """Returns the size of the weights, or the usual one, rounded down to whole patches."""
    if trained_size not in (None, _PRETRAINED_SIZE):
        return trained_size
    return (
        size - size % row.patch_size if isinstance(row, ViTVariant) and row.stem is None else size
    )


def _load_data(
    data: str | os.PathLike | Source, validation: str | os.PathLike | Source | None
) -> tuple[Source, Source, str]:
    """Returns the training set, the validation set, and a description of the validation set."""
    training, test = (data, None) if isinstance(data, Source) else folders.training_and_test(data)
    if len(training.class_names) < 2:
        raise ValueError(
            f"{training.name} has a single class. Fine-tuning needs two or more classes."
        )
    if isinstance(validation, Source):
        test = validation
    elif validation is not None:
        test = image_folder(validation, class_names=training.class_names)
    if test is None:
        split = training.split if training.labels is None else training.split_by_class
        test, training = split(HELD_OUT)
        return training, test, f"{test.num_examples:,}, {HELD_OUT:.0%} of each class, held out"
    if test.class_names != training.class_names:
        raise ValueError(
            f"{test.name} has other classes than {training.name}. Expected: "
            f"{', '.join(training.class_names[:10])}. Received: {', '.join(test.class_names[:10])}."
        )
    return training, test, f"{test.num_examples:,} of {test.name}"


def _make_settings(
    training: Source,
    start: _Start,
    steps: int | None,
    batch_size: int | None,
    learning_rate: float,
    seed: int,
) -> RunConfig:
    fast = has_accelerator()
    steps = bit_hyperrule(training.num_examples).total_steps if steps is None else steps
    most = _PAPER_BATCH if fast else _CPU_BATCH
    batch_size = (
        min(most, 2 ** int(np.log2(training.num_examples))) if batch_size is None else batch_size
    )
    wrong = [
        f"`{name}` = {value}"
        for name, value in (("steps", steps), ("batch_size", batch_size))
        if value < 1
    ]
    if wrong:
        raise ValueError(
            f"`steps` and `batch_size` must be at least 1. Received: {', '.join(wrong)}."
        )
    if learning_rate <= 0:
        raise ValueError(f"`learning_rate` must be above 0. Received: {learning_rate}.")
    rows = max(1, int((_ROWS if fast else _CPU_ROWS) * (_PAPER_SIZE / start.image_size) ** 2))
    return RunConfig(
        data=DataConfig(kind="given", name=training.name, test=""),
        batch_size=batch_size,
        eval_batch_size=min(rows, _PAPER_BATCH),
        accumulation_steps=-(-batch_size // rows),
        remat=start.parameters > _LARGE,
        seed=seed,
        optimizer=OptimizerConfig(
            name="momentum",
            learning_rate=learning_rate,
            schedule="cosine",
            warmup_steps=min(500, steps // 5),
            clip_norm=1.0,
        ),
        loop=LoopConfig(
            total_steps=steps,
            log_every=max(1, steps // 50),
            evaluate_every=-(-steps // 5),
            checkpoint_every=min(100, max(20, steps // 10)),
            keep_checkpoints=1,
        ),
    )


def _describe_plan(
    config: TransferConfig, start: _Start, training: Source, measured: Source, data: Any
) -> str:
    """Describes the fine-tuning in one paragraph."""
    settings, classes, parts = config.run, len(training.class_names), config.run.accumulation_steps
    rate, warmup = settings.optimizer.learning_rate, settings.optimizer.warmup_steps
    each = ""
    if training.labels is not None:
        counts = np.bincount(training.labels, minlength=classes)
        few, many = counts.min(), counts.max()
        each = f", {few:,} per class" if few == many else f", {few:,} to {many:,} per class"
    images = settings.batch_size * settings.loop.total_steps
    sentences = [
        f"Fine-tuning {start.name} ({start.parameters:,} parameters, weights: {start.weights}) at "
        f"{start.image_size} x {start.image_size} pixels.",
        f"Training on {training.num_examples:,} images of {classes:,} classes{each} "
        f"({training.name}); validation on {measured.num_examples:,} other images "
        f"({config.validation.partition(', ')[2] or measured.name}).",
        f"{settings.loop.total_steps:,} steps of {settings.batch_size:,} images"
        + (f", in {parts} micro-batches" if parts > 1 else "")
        + f", which is {images / training.num_examples:.3g} epochs. The learning rate rises to "
        f"{rate:g} over {warmup:,} steps, then falls to 0 along a cosine.",
    ]
    if start.weights == "none":
        sentences.append(
            "The weights are random: unless you have hundreds of thousands of images, published "
            "weights give a much better model."
        )
    if not has_accelerator():
        sentences.append("No accelerator was found; the progress bar shows the remaining time.")
    sentences.append(_describe_unmeasured(training, measured))
    sentences.append(group_by_reason(dict.fromkeys((*training.left_out, *measured.left_out))))
    return textwrap.fill(
        " ".join(filter(None, sentences)), 100, break_long_words=False, break_on_hyphens=False
    )


def _describe_unmeasured(training: Source, measured: Source) -> str:
    """Describes the classes without a validation image, such as those with a single photo."""
    if measured.labels is None:
        return ""
    counts = np.bincount(measured.labels[measured.labels >= 0], minlength=len(training.class_names))
    names = [name for name, count in zip(training.class_names, counts, strict=True) if not count]
    some = to_one_line(", ".join(names[:10])) + (", ..." if len(names) > 10 else "")
    return f"Classes without a validation image, {len(names):,}: {some}." if names else ""


def _short_name(training: Source) -> str:
    path = Path(training.name)
    return path.parent.name if path.name.lower() in folders.TRAINING else path.name


def _load_result(folder: Path, training: Source) -> Finetuned:
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return Finetuned(
        model=keras.models.load_model(folder / "model.keras"),
        class_names=training.class_names,
        accuracy=results["validation/accuracy"],
        report=folder / "report.md",
    )
