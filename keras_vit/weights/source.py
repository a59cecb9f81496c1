"""The argument `weights=`: a tag, a file or a URL to arrays under our names.

It combines the catalog, the download, the readers and the dialects. It does not import Keras.
"""

import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import logging

from keras_vit import grid
from keras_vit.variants import VARIANTS, Classifier, Gelu, ResNetVariant, Rgb, ViTVariant
from keras_vit.weights import catalog, download, hub, layouts, model_file

_LARGEST_ZOOM = 64
_READABLE = (".npz", ".safetensors", ".h5")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WeightsSource:
    """The location of weights, before they are read.

    Attributes:
        model: Public name of the model that loads them.
        weights: The value of the argument `weights`.
        row: Row of the catalog, or None for an unknown file or URL.
        is_tag: Whether `weights` is a tag of the catalog.
        variant: Row of the model, or None if it is not known.
        parameters: Number of parameters of the model, which limits the size of the file. Default:
            that of the row.
    """

    model: str
    weights: str
    row: catalog.CatalogRow | None
    is_tag: bool
    variant: ViTVariant | ResNetVariant | None = None
    parameters: int | None = None

    @property
    def is_published(self) -> bool:
        """Whether the catalog describes the weights. A file on this machine may be a copy that was
        fine-tuned, so its arrays decide whether it has a head.
        """
        return self.is_tag or "://" in self.weights


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The source of weights. As a string, it also names the model of the arrays if it is another.

    The arrays are identified only when an error message needs the string.
    """

    name: str
    model: str
    canonical: Mapping[str, np.ndarray] | None

    def __str__(self) -> str:
        try:
            found = (
                self.model
                if self.canonical is None
                else layouts.identify(self.canonical, expected=self.model)
            )
        except ValueError:
            found = self.model
        return (
            self.name if found == self.model else f"{self.name}, whose arrays are those of {found},"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """Weights that were read, and their properties.

    Attributes:
        arrays: {our name: array}.
        origin: Source of the weights, for error messages.
        image_size: (height, width) of the training images, or None if unknown.
        grid: (rows, columns) of the position table if known, or if it must be a square; else None.
        grid_is_known: Whether the file or the catalog contains the grid.
        num_heads: Number of attention heads of the encoder, or None if unknown.
        gelu: "tanh", "exact" or "quick".
        norm_epsilon: Epsilon of layer normalization, or None if the file does not contain it.
        representation_size: Width of the tanh layer, or None.
        head_is_zero: Whether the final layer is all zeros.
        pixel_mean, pixel_std: Mean and deviation by which the training images were normalized, on
            the scale from 0 to 1. None if unknown.
        classifier: What the head was trained on, if the file or its JSON files say so.
        problem_type: Task of the head in Transformers, if it is not to choose one class.
    """

    arrays: dict[str, np.ndarray]
    origin: Origin
    image_size: tuple[int, int] | None
    grid: tuple[int, int] | None
    grid_is_known: bool
    num_heads: int | None
    gelu: Gelu
    norm_epsilon: float | None
    representation_size: int | None
    head_is_zero: bool
    pixel_mean: Rgb | None
    pixel_std: Rgb | None
    classifier: Classifier | None = None
    problem_type: str | None = None

    def sha256(self) -> str:
        """Returns the beginning of a hash of the arrays and of what the file says about them."""
        facts = [
            value
            for field in dataclasses.fields(self)
            if field.name not in ("arrays", "origin")
            # of fields that were added later, so that older files have the hash of before
            if (value := getattr(self, field.name)) is not None or field.default is not None
        ]
        digest = hashlib.sha256(repr(facts).encode())
        for name, array in sorted(self.arrays.items()):
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def find_classifier(variant: ViTVariant, pretrained: Pretrained) -> Classifier | None:
    """Returns what the head of the weights reads, or, without a head, what a new one can read; None
    if the weights do not tell, for the classifier of the row.
    """
    arrays = pretrained.arrays
    has_head = "predictions/kernel" in arrays
    if has_head and arrays["predictions/kernel"].shape[0] == 2 * variant.width:
        return "token_gap"  # the linear classifiers of DINOv2
    if has_head and pretrained.classifier is not None:
        return pretrained.classifier
    if "embedding/kernel" not in arrays:  # not a whole encoder
        return None
    if "map_head/probe" in arrays:
        return "map"
    has_token, has_pooled_norm = "class_token/cls" in arrays, "pooled_norm/gamma" in arrays
    if variant.classifier == "token" and (has_pooled_norm or not has_token):
        return "gap"  # timm's `global_pool="avg"`: the mean of the patches, then its norm
    if variant.classifier == "map":
        return "gap"  # SiglipForImageClassification
    has_norm = "encoder_norm/gamma" in arrays and not has_pooled_norm
    if variant.classifier == "gap" and has_head and has_token and has_norm:
        return "token"  # MAE, fine-tuned without the mean of the patches
    return None


def find(
    model: str,
    weights: str | os.PathLike,
    parameters: int | None = None,
    *,
    variant: ViTVariant | ResNetVariant | None = None,
) -> WeightsSource:
    """Finds the location of `weights`, without reading or downloading it.

    Args:
        model: Public name of the model.
        weights: Tag, file or URL. A file or folder with the name of a tag needs a path:
            "./imagenet".
        parameters: Number of parameters of the model, which limits the size of the file. Default:
            that of the row.
        variant: Row of the model. Default: that of its name in the table.

    Raises:
        ValueError: If it is neither a file, nor a URL, nor a tag of this model.
    """
    weights = os.path.expanduser(os.fspath(weights))
    if variant is None:
        variant = VARIANTS.get(model)
    facts = {"model": model, "weights": weights, "parameters": parameters, "variant": variant}
    # A folder `imagenet` in the working directory must not hide the tag.
    is_listed = model in VARIANTS and weights in catalog.list_weights(model)
    if not is_listed and (os.path.exists(weights) or "://" in weights):
        # A folder has its config.json, and may be a copy of a published one that was fine-tuned.
        row = None if os.path.isdir(weights) else catalog.by_file_name(weights)
        return WeightsSource(row=row if row and row.model == model else None, is_tag=False, **facts)
    try:
        return WeightsSource(row=catalog.lookup(model, weights), is_tag=True, **facts)
    except ValueError as error:
        no_file = weights.endswith(_READABLE) or os.sep in weights
        raise ValueError(
            "The `weights` argument should be either `None` (random initialization), `imagenet` "
            "(pre-training on ImageNet), a tag of the catalog, a URL, or the path to the weights "
            "file to be loaded.  Received: "
            f"weights={weights}" + (" (there is no such file)" if no_file else "") + f"\n{error}"
        ) from None


def load(source: WeightsSource) -> Pretrained:
    """Downloads the weights if necessary, reads them and converts them to our names.

    Raises:
        ValueError: If the file is damaged, unsafe, of an unknown layout, or not finite.
        OSError: If the file cannot be downloaded or read.
    """
    path = source.weights
    if source.is_tag or "://" in path:
        _log_licence(source)
        # An address may name a revision, which its row does not.
        named = None if path.startswith(hub.SCHEME) else source.row
        path = download.fetch(path if named is None else named)
    return _describe(source, model_file.read(path, source.variant, source.parameters))


_FREE_LICENCES = ("Apache-2.0", "MIT")


def _log_licence(source: WeightsSource) -> None:
    """Logs the licence of weights that not everyone may use for everything, before a download."""
    row = source.row
    if row is None or (row.licence in _FREE_LICENCES and not row.is_gated):
        return
    logging.warning(
        "%s is published under %s%s. Read its terms before you use it.",
        row.file,
        row.licence,
        ", and its owner grants access on request" if row.is_gated else "",
    )


def describe_for_record(
    model: str, weights: str, *, variant: ViTVariant | ResNetVariant | None = None
) -> str:
    """Returns `weights` as the config of a run records it, without passwords.

    A file and a URL are read, and recorded with a hash of their content, so that a run notices that
    they have changed. The files of tags are pinned; tags are recorded as they are.

    Args, Raises: As of `find` and `load`.
    """
    found = find(model, weights, variant=variant)
    return found.weights if found.is_tag else f"{origin_of(found)}, sha256 {load(found).sha256()}"


def origin_of(source: WeightsSource) -> str:
    """Returns the name of the weights for messages, without passwords."""
    return download.without_secrets(source.weights)


def _describe(source: WeightsSource, found: model_file.ModelFile) -> Pretrained:
    metadata, arrays = found.metadata, found.ours()
    if found.dialect == "keras" and "gelu" not in metadata and "encoder_norm/gamma" in arrays:
        logging.warning(
            "%s does not contain its form of GELU, its epsilons and its grid, like all files of "
            "older versions. The published values and a square grid are assumed. Save it again.",
            origin_of(source),
        )
    variant = source.variant if isinstance(source.variant, ViTVariant) else None
    size = metadata.get("image_size")
    if size is None and source.row is not None:
        size = (source.row.image_size, source.row.image_size)
    if size is not None and found.dialect not in ("google", "keras"):
        size = _crop_to_patches(size, arrays)
    pixels = {name: metadata.get(name) for name in ("pixel_mean", "pixel_std")}
    if found.dialect == "keras" and "gelu" in metadata:  # no layer of other pixels was in the model
        pixels = {name: color or (0.5, 0.5, 0.5) for name, color in pixels.items()}
    classifier = metadata.get("classifier")
    if found.dialect == "timm" and variant is not None and variant.rotary:
        classifier = classifier or "gap"  # of timm's class for DINOv3, unless it is told otherwise
    position_grid, grid_is_known = _find_grid(metadata, arrays, variant, size)
    kernel = arrays.get("predictions/kernel")
    tanh_bias = arrays.get("pre_logits/bias")
    gelu = metadata.get("gelu") or (source.row and source.row.gelu)
    return Pretrained(
        arrays=arrays,
        origin=Origin(
            name=origin_of(source),
            model=source.model,
            canonical=None if found.dialect == "keras" else _keep_shapes(found.arrays),
        ),
        image_size=(size[0], size[1]) if size else None,
        grid=position_grid,
        grid_is_known=grid_is_known or source.row is not None,
        num_heads=_find_num_heads(found),
        gelu=gelu or _default_gelu(found.dialect, variant),
        norm_epsilon=metadata.get("layer_norm_epsilon"),
        representation_size=None if tanh_bias is None else tanh_bias.shape[0],
        head_is_zero=kernel is not None and not kernel.any(),
        **pixels,
        classifier=classifier,
        problem_type=metadata.get("problem_type"),
    )


def _crop_to_patches(size: tuple[int, int], arrays: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Returns the part of an image that a convolution without padding cuts into patches.

    SigLIP was trained on images of 384 pixels with patches of 14: the last 6 pixels are not seen.
    """
    if "embedding/kernel" not in arrays or "conv_root/kernel" in arrays:
        return size
    patch = arrays["embedding/kernel"].shape[0]
    height, width = (side // patch * patch or side for side in size)
    return height, width


def adapt(variant: ViTVariant, pretrained: Pretrained) -> ViTVariant:
    """Returns the row of a model with what its weights say: biases, last norm, heads, pixels.

    Files of one model differ in them: timm leaves out biases of DINOv3 that are zero, MAE has a
    final norm before fine-tuning and one after the mean when fine-tuned, a distilled DeiT that was
    fine-tuned without a teacher has one head, and CLIP's projection may be replaced by a
    classifier.
    """
    names = pretrained.arrays.keys()
    block = "encoderblock_0/attention"
    fields: dict[str, Any] = {"norm_after_pooling": "pooled_norm/gamma" in names}
    if variant.attention_bias != "all" and f"{block}/query/kernel" in names:
        has_key, has_query = f"{block}/key/bias" in names, f"{block}/query/bias" in names
        fields["attention_bias"] = "all" if has_key else "no_key" if has_query else "none"
    if variant.distilled and "predictions/kernel" in names:
        fields["distilled_head"] = "predictions_distilled/kernel" in names
    if fields["norm_after_pooling"] and "class_token/cls" in names:
        fields["class_token"] = True  # among the tokens, though the head reads the patches
    # A row never loses a bias that it has: that is a damaged file.
    if "embedding/bias" in names:
        fields["patch_bias"] = True
    if "predictions/bias" in names:
        fields["projection"] = None
    if pretrained.pixel_mean is not None:
        fields["pixel_mean"] = pretrained.pixel_mean
    if pretrained.pixel_std is not None:
        fields["pixel_std"] = pretrained.pixel_std
    return dataclasses.replace(variant, **fields)


def _default_gelu(dialect: str, variant: ViTVariant | None) -> Gelu:
    """Returns the form of GELU of a file that does not contain it."""
    if dialect in ("google", "keras"):
        return variant.gelu if variant else "tanh"
    return (variant and (variant.torch_gelu or variant.gelu)) or "exact"


def _keep_shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns arrays of the same names and shapes that take no memory."""
    return {name: np.broadcast_to(np.float32(0), x.shape) for name, x in arrays.items()}


def _find_num_heads(found: model_file.ModelFile) -> int | None:
    """Returns the head count of the encoder: from the axis of heads, else from the metadata."""
    for name, array in found.arrays.items():
        if (
            found.dialect != "keras"
            and name.startswith("Transformer/")
            and name.endswith("/query/kernel")
        ):
            return array.shape[1] if array.ndim == 3 else None
    return found.metadata.get("num_heads")


def _find_grid(
    metadata: dict[str, Any],
    arrays: dict[str, np.ndarray],
    variant: ViTVariant | None,
    image_size: tuple[int, int] | None,
) -> tuple[tuple[int, int] | None, bool]:
    """Returns the grid of the position table, and whether the file tells it: in its metadata, or by
    an image size with as many patches. Otherwise, a square grid if the table can have one.
    """
    if "grid" in metadata:
        return metadata["grid"], True
    table = arrays.get("posembed_input/pos_embedding")
    if table is None or table.ndim != 3:
        return None, False
    has_prefix = variant is None or variant.class_position
    prefix = ("class_token/cls", "distillation_token/cls") if has_prefix else ()
    count = table.shape[1] - sum(name in arrays for name in prefix)
    if image_size is not None and variant is not None:
        rows, columns = (side // variant.total_stride for side in image_size)
        if rows * columns == count:
            return (rows, columns), True
    try:
        return grid.square_grid(count), False
    except ValueError:
        return None, False


def check_activation(source: WeightsSource, pretrained: Pretrained, activation: str) -> None:
    """Raises ValueError if the outputs of the head do not belong to one class of several, and the
    activation makes probabilities of them.
    """
    kernel = pretrained.arrays.get("predictions/kernel")
    problem = pretrained.problem_type
    if kernel is not None and kernel.shape[-1] == 1 and activation == "softmax":
        raise ValueError(
            f"The head of {origin_of(source)} has one output, of which softmax always makes 1. Pass "
            '`classifier_activation=None` or "sigmoid".'
        )
    if problem == "regression" and activation != "linear":
        raise ValueError(
            f"The head of {origin_of(source)} returns numbers (problem_type: regression), and "
            f"{activation} would change them. Pass `classifier_activation=None`."
        )
    if problem == "multi_label_classification" and activation == "softmax":
        raise ValueError(
            f"The head of {origin_of(source)} scores each label on its own (problem_type: "
            'multi_label_classification). Pass `classifier_activation="sigmoid"`, or None.'
        )


def check_heads(pretrained: Pretrained, model: str, num_heads: int) -> None:
    """Raises ValueError if weights were trained with another number of attention heads.

    The shapes of such arrays match the model, so no other check detects this.
    """
    if pretrained.num_heads not in (None, num_heads):
        raise ValueError(
            f"{pretrained.origin} was trained with {pretrained.num_heads} attention heads, and "
            f"{model} has {num_heads}: it would compute something else. Choose the model of the "
            "file."
        )


def check_grid(
    pretrained: Pretrained, grid_of: Callable[[tuple[int, int]], tuple[int, int]]
) -> None:
    """Raises ValueError if the grid and the image size of a file contradict each other.

    Args:
        pretrained: The weights that were read.
        grid_of: Function from an image size to the (rows, columns) of the patches of the model.
    """
    if not pretrained.grid_is_known or pretrained.grid is None or pretrained.image_size is None:
        return
    try:
        expected = grid_of(pretrained.image_size)
    except ValueError:  # the size is not a multiple of the patch size, so it proves nothing
        return
    stored, needed = math.prod(pretrained.grid), math.prod(expected)
    # A table may have another size than the grid of the images, but not the same number of
    # positions in another shape, and it is never much smaller.
    if pretrained.grid != expected and (stored == needed or stored * _LARGEST_ZOOM < needed):
        raise ValueError(
            f"The metadata of {pretrained.origin} contradict each other: images of "
            f"{pretrained.image_size} pixels have a grid of {expected} patches, not of "
            f"{pretrained.grid}. Correct its metadata, or export it again."
        )


def zero_head_message(source: WeightsSource) -> str:
    """Returns the error message for `include_top=True` with a head that is all zeros."""
    alternative = source.row and catalog.alternative_with_head(source.row)
    return (
        f"The classification head of {origin_of(source)} is all zeros (Google published its "
        "ImageNet-21k files that way), so every class would get the same score. Use "
        "`include_top=False`"
        + (f', or `weights="{alternative}"`, which has a trained head' if alternative else "")
        + f'. `keras_vit.list_weights("{source.model}")` lists the tags of {source.model}.'
    )
