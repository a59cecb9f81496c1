"""The table of published checkpoints: one row per file and tag; AugReg's 52 268 file names.

Tags:
    `imagenet21k`: pre-trained on ImageNet-21k. The published classification head is all zeros and
        follows a tanh layer. Zeros are reported for B/16, B/32, L/16, L/32 and H/14, and assumed
        for the other models.
    `imagenet21k+imagenet2012`, `imagenet21k+imagenet2012_224`: the same, fine-tuned at 384 and at
        224 pixels.
    `augreg_in21k`: the AugReg file that Google recommends, with a valid head.
    `augreg_in21k_ft_in1k_384`: its fine-tune on ImageNet at 384 pixels.
    `augreg_in21k_ft_in1k_224`: a fine-tune on ImageNet at 224 pixels. Only files in timm's tables
        are listed. For S/32, B/32, B/8, L/16 and R26+S/32 they come from another pre-training run
        than `augreg_in21k`.
    `sam`: trained on ImageNet alone with sharpness-aware minimisation.
    `bit_s`, `bit_m`, `bit_m_imagenet`, `bit_distilled_*`, `bit_teacher_*`: Big Transfer ResNets.
    `imagenet`: an alias for the preferred 1000-class file of the model, 224 pixels before 384.
    `in1k`, `lvd142m`, `openai`, `webli`, ...: other families, see `hub_table.py`.
    Google's own file name: for any AugReg file, and for other files with a unique name. Folder and
        `.npz` may be left out.

The GSAM files are not listed: they use average pooling without a class token, and timm measured a
low accuracy. They can be loaded by URL. Google publishes no hashes; `download.py` records a hash at
the first use.

Sources (facts only): READMEs of google-research/vision_transformer and big_transfer, and the
listing in `vit_jax.ipynb`; big_vision `models/vit.py` (B/8); timm 1.0.31 `vision_transformer*.py`
(fine-tunes at 224).
"""

import dataclasses
import re
from collections.abc import Iterator
from os import PathLike, fspath
from typing import Any, Literal
from urllib.parse import quote, unquote

from keras_vit.suggestions import did_you_mean
from keras_vit.variants import FAMILY_VARIANTS, RESNET_VARIANTS, VARIANTS
from keras_vit.weights import hub_table

_VIT_BUCKET = "https://storage.googleapis.com/vit_models/"
_BIT_BUCKET = "https://storage.googleapis.com/bit_models/"
_UNITS = {"MiB": 2**20, "GiB": 2**30}

_VIT_PAPER = "arXiv:2010.11929, Table 5"
_VIT_README = "google-research/vision_transformer README"
_BIT_README = "google-research/big_transfer README"

_OTHER_WAYS = "A local file, a URL, or None are also valid."


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CatalogRow:
    """A published file under one tag of one model.

    Attributes:
        model: Public model name, as in `variants.py`.
        tag: Value of `weights=` that selects the file.
        url: URL of the file, percent-encoded.
        bytes: Size of the file as listed, or None if it is not listed.
        bytes_tolerance: Largest difference between `bytes` and the true size: one unit of the last
            listed digit.
        image_size: Side of the square training images, in pixels.
        classes: Number of outputs of the head, or None if the file has no head.
        dataset: Data set whose classes the head predicts: "imagenet2012", "imagenet21k" or an
            AugReg adaptation data set; None without classes.
        head_is_valid: False if the head is all zeros, so that its predictions are meaningless.
        has_pre_logits: True if there is a tanh layer before the head.
        gelu: The form of GELU in training; None for ResNets, which have no GELU, and for files of
            other families, which say it in their `config.json`.
        transform: Preprocessing of evaluation images, before `x / 127.5 - 1`. "resize" (fine-tuned
            files): to (`image_size`, `image_size`), bilinear without antialiasing.
            "resize_small_crop" (pre-trained files): the shorter side to 8/7 of `image_size` (256 for
            224) by area, then the central crop. "central:SHARE" (other families): the central crop
            of a share of the shorter side, see `keras_vit.data.transforms.share_crop`.
        accuracy: Published ImageNet top-1 accuracy in percent, or None.
        accuracy_source: Publication of `accuracy`.
        sha256: Published hash, or None.
        licence: Licence of the weights.
        is_gated: Whether the owner grants access one by one, on the page of the repository.
    """

    model: str
    tag: str
    url: str
    bytes: int | None
    bytes_tolerance: int
    image_size: int
    classes: int | None
    dataset: str | None
    head_is_valid: bool
    has_pre_logits: bool
    gelu: Literal["tanh"] | None
    transform: str
    accuracy: float | None
    accuracy_source: str | None
    sha256: str | None = None
    licence: str = "Apache-2.0"
    is_gated: bool = False

    @property
    def file(self) -> str:
        """Directory and name, such as "imagenet21k/ViT-B_16.npz", or owner and repository.

        The name alone is ambiguous.
        """
        return "/".join(unquote(self.url).rsplit("/", 2)[1:])


# --- the files of the ViT paper: model → (name, size as listed)
_IMAGENET21K = {
    "ViT_B16": ("ViT-B_16", "393.69 MiB"),
    "ViT_B32": ("ViT-B_32", "400.01 MiB"),
    "ViT_B8": ("ViT-B_8", "393.72 MiB"),
    "ViT_L16": ("ViT-L_16", "1.22 GiB"),
    "ViT_L32": ("ViT-L_32", "1.23 GiB"),
    "ViT_H14": ("ViT-H_14", "2.46 GiB"),
    "R50_ViT_B16": ("R50+ViT-B_16", "439.85 MiB"),
    "R26_ViT_B32": ("R26+ViT-B_32", "450.23 MiB"),
    "R50_ViT_L32": ("R50+ViT-L_32", "1.31 GiB"),
}

# model → (name, size as listed, image size, top-1, its source)
_FINE_TUNED = [
    ("ViT_B16", "ViT-B_16", "331.40 MiB", 384, 83.97, _VIT_PAPER),
    ("ViT_B16", "ViT-B_16-224", "330.29 MiB", 224, 81.2, _VIT_README),
    ("ViT_B32", "ViT-B_32", "336.89 MiB", 384, 81.28, _VIT_PAPER),
    ("ViT_B8", "ViT-B_8", "334.78 MiB", 384, None, None),
    ("ViT_L16", "ViT-L_16", "1.14 GiB", 384, 85.15, _VIT_PAPER),
    ("ViT_L16", "ViT-L_16-224", "1.13 GiB", 224, 82.7, _VIT_README),
    ("ViT_L32", "ViT-L_32", "1.14 GiB", 384, 80.99, _VIT_PAPER),
    ("R50_ViT_B16", "R50+ViT-B_16", "377.57 MiB", 384, 85.08, f"{_VIT_README} (dropout 0.1)"),
]

# S/16 is three times its parameters: it seems to carry the optimiser's slots.
_SAM = {
    "ViT_B16": ("ViT-B_16", "330.30 MiB"),
    "ViT_B32": ("ViT-B_32", "336.61 MiB"),
    "ViT_L16": ("ViT-L_16", "1.13 GiB"),
    "ViT_L32": ("ViT-L_32", "1.14 GiB"),
    "ViT_S16": ("ViT-S_16", "252.57 MiB"),
}

# --- AugReg
_AUGREG_NAMES = {
    "Ti_16": "ViT_Ti16",
    "S_32": "ViT_S32",
    "S_16": "ViT_S16",
    "B_32": "ViT_B32",
    "B_16": "ViT_B16",
    "B_8": "ViT_B8",
    "L_16": "ViT_L16",
    "R_Ti_16": "R_ViT_Ti16",
    "R26_S_32": "R26_ViT_S32",
    "R50_L_32": "R50_ViT_L32",
}

# name: (run that Google recommends: augmentation, weight decay, dropout and stochastic depth; its
# listed size; learning rate and top-1 of its fine-tune at 384; run of the fine-tune at 224;
# learning rate of the fine-tune at 224)
_AUGREG = {
    "Ti_16": ("none 0.03 0.0", "37 MiB", "0.03", 78.22, "none 0.03 0.0", "0.03"),
    "S_32": ("none 0.1 0.0", "118 MiB", "0.01", 79.58, "light1 0.03 0.0", "0.03"),
    "S_16": ("light1 0.03 0.0", "115 MiB", "0.03", 83.73, "light1 0.03 0.0", "0.03"),
    "B_32": ("light1 0.1 0.0", "398 MiB", "0.01", 83.59, "medium1 0.03 0.0", "0.03"),
    "B_16": ("medium1 0.1 0.0", "391 MiB", "0.03", 85.49, "medium1 0.1 0.0", "0.01"),
    "B_8": ("medium2 0.1 0.0", None, None, None, "medium1 0.1 0.0", "0.01"),
    "L_16": ("strong1 0.1 0.0", "1243 MiB", "0.01", 85.59, "medium1 0.1 0.1", "0.01"),
    "R_Ti_16": ("none 0.03 0.0", "40 MiB", "0.03", 75.40, "none 0.03 0.0", "0.03"),
    "R26_S_32": ("light1 0.1 0.0", "170 MiB", "0.01", 83.85, "light0 0.03 0.1", "0.03"),
    "R50_L_32": ("medium1 0.1 0.1", "1337 MiB", "0.01", 85.99, "medium1 0.1 0.1", "0.01"),
}

_LABELS = {"i1k": ("imagenet2012", 1000), "i21k": ("imagenet21k", 21843)}
_ADAPTED_CLASSES = {
    "imagenet2012": 1000,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "kitti": 4,
    "resisc45": 45,
}

# A pattern per field, so that an error can name the invalid fields.
_AUGREG_RUN = {
    "model": "|".join(_AUGREG_NAMES),
    "data set": "|".join(_LABELS),
    "epochs": "(30|300)ep",
    "learning rate": r"lr_\d+\.\d+",
    "augmentation": "aug_(none|light0|light1|medium1|medium2|strong1|strong2)",
    "weight decay": r"wd_(0\.03|0\.1)",
    "dropout": r"do_0\.[01]",
    "stochastic depth": r"sd_0\.[01]",
}
_AUGREG_ADAPTATION = {
    "adaptation data set": "|".join(_ADAPTED_CLASSES),
    "steps": "steps_(0|2|10|20)k",
    "adaptation learning rate": r"lr_\d+\.\d+",
    "resolution": "res_(224|384)",
}
_LOOKS_LIKE_AUGREG = re.compile(r"^augreg/|-i\w*k-|ep-lr_")

# --- Big Transfer: accuracies of the `bit_m_imagenet` files
_BIT_ACCURACY = {
    "R50x1": (80.68, f"{_BIT_README} (a repetition of the fine-tuning)"),
    "R152x2": (85.15, f"{_BIT_README} (a repetition of the fine-tuning)"),
    "R152x4": (85.39, "arXiv:1912.11370"),
}
_DISTILLED = [
    ("bit_distilled_224", "BiT_R50x1", "R50x1_224", 224, 82.8),
    ("bit_distilled_160", "BiT_R50x1", "R50x1_160", 160, 80.5),
    ("bit_teacher_224", "BiT_R152x2", "R152x2_T_224", 224, None),
    ("bit_teacher_384", "BiT_R152x2", "R152x2_T_384", 384, None),
]


def lookup(model: str, tag: str) -> CatalogRow:
    """Return the row of a tag, or of Google's own file name, for a model.

    Args:
        model: Public model name.
        tag: One of `list_weights(model)`, or a file name as Google has it, with or without its
            folder and ".npz".

    Raises:
        ValueError: If the model or the tag is unknown, if a file name does not parse, or if it is
            another model's.

    Example:
        >>> lookup("ViT_B16", "sam").image_size
        224
    """
    rows = _rows_of(model)
    if tag in rows:
        return rows[tag]
    row = by_file_name(f"{tag.removesuffix('.npz')}.npz")
    if row is None and _LOOKS_LIKE_AUGREG.search(tag):
        row = _parse_augreg(tag)  # raises an error that names the invalid fields
    if row is not None:
        if row.model != model:
            raise ValueError(
                f"'{tag}' is a file of {row.model}, not of {model}. Use "
                f"{row.model}(weights='{tag}')."
            )
        return row
    valid = (
        f"Valid tags: {', '.join(rows)}; or the name of a file of Google's."
        if rows
        else "No file of this model was published."
    )
    raise ValueError(
        f"Unknown weights for {model}: '{tag}'.{did_you_mean(tag, rows)} {valid} {_OTHER_WAYS}"
    )


def list_weights(model: str) -> list[str]:
    """Return the tags that `weights=` takes for a model; empty if nothing was published for it.

    Example:
        >>> list_weights("ViT_H14")
        ['imagenet21k']
    """
    return list(_rows_of(model))


def alternative_with_head(row: CatalogRow) -> str | None:
    """Return the tag of a file of the same model whose ImageNet-21k head is valid, or None.

    Example:
        >>> alternative_with_head(lookup("ViT_B16", "imagenet21k"))
        'augreg_in21k'
    """
    for tag, other in _ROWS[row.model].items():
        if other.head_is_valid and other.dataset == "imagenet21k" and other.url != row.url:
            return tag
    return None


def by_file_name(name: str | PathLike[str]) -> CatalogRow | None:
    """Return the row of a published file, from its name, path or URL; None if it is ambiguous.

    "ViT-B_16.npz" alone is ambiguous, because three directories contain a file of that name; with
    its directory it is not. A URL must be Google's: elsewhere, a file of the same name may be
    another one.

    Example:
        >>> by_file_name("downloads/sam/ViT-B_16.npz").tag
        'sam'
    """
    address = fspath(name)
    if address.startswith("hf://"):
        repository = address.partition("@")[0]
        return next((row for row in _FILES if row.url == repository), None)
    scheme, _, rest = unquote(address.replace("\\", "/")).rpartition("://")
    parts = rest.removeprefix("storage.googleapis.com/").split("/")
    if scheme and parts[0] not in ("vit_models", "bit_models"):
        return None
    rows = files_named(parts[-1])
    if len(rows) > 1:
        rows = [row for row in rows if row.file.split("/")[0] == parts[-2:][0]]
    try:
        return rows[0] if rows else _parse_augreg(parts[-1])
    except ValueError:
        return None


def files_named(file: str) -> list[CatalogRow]:
    """Return one row for each published file of this name, whatever its directory.

    Example:
        >>> [row.tag for row in files_named("ViT-B_32.npz")]
        ['imagenet21k', 'imagenet21k+imagenet2012', 'sam']
    """
    return [row for row in _FILES if row.file.split("/")[1] == file]


def _rows_of(model: str) -> dict[str, CatalogRow]:
    if model not in _ROWS:
        raise ValueError(
            f"Unknown model '{model}'.{did_you_mean(model, _ROWS)} Models: {', '.join(_ROWS)}."
        )
    return _ROWS[model]


def _make_row(
    model: str, tag: str, path: str, size: str | None, *, bucket: str = _VIT_BUCKET, **facts: Any
) -> CatalogRow:
    """Make a row with the values of an ImageNet classifier, except those in `facts`."""
    listed, tolerance = _parse_size(size)
    usual = {"image_size": 224, "classes": 1000, "dataset": "imagenet2012", "transform": "resize"}
    usual |= {
        "head_is_valid": True,
        "has_pre_logits": False,
        "gelu": "tanh" if bucket == _VIT_BUCKET else None,
    }
    usual |= {"accuracy": None, "accuracy_source": None, **facts}
    url = f"{bucket}{quote(path)}.npz"
    return CatalogRow(
        model=model, tag=tag, url=url, bytes=listed, bytes_tolerance=tolerance, **usual
    )


def _parse_size(listed: str | None) -> tuple[int | None, int]:
    """Return bytes and their tolerance: one unit of the last digit, because the
    listing is rounded.
    """
    if listed is None:
        return None, 0
    number, unit = listed.split()
    digits = len(number.partition(".")[2])
    return round(float(number) * _UNITS[unit]), round(_UNITS[unit] / 10**digits)


_PRETRAINED_21K = {"classes": 21843, "dataset": "imagenet21k", "transform": "resize_small_crop"}


def _make_paper_rows() -> Iterator[CatalogRow]:
    for model, (name, size) in _IMAGENET21K.items():
        facts = {**_PRETRAINED_21K, "head_is_valid": False, "has_pre_logits": True}
        yield _make_row(model, "imagenet21k", f"imagenet21k/{name}", size, **facts)
    for model, name, size, image_size, accuracy, source in _FINE_TUNED:
        tag = "imagenet21k+imagenet2012" + ("" if image_size == 384 else f"_{image_size}")
        facts = {"image_size": image_size, "accuracy": accuracy, "accuracy_source": source}
        yield _make_row(model, tag, f"imagenet21k+imagenet2012/{name}", size, **facts)
    for model, (name, size) in _SAM.items():
        yield _make_row(model, "sam", f"sam/{name}", size, transform="resize_small_crop")


def _make_augreg_rows() -> Iterator[CatalogRow]:
    for name, (run, size, rate_384, accuracy, run_224, rate_224) in _AUGREG.items():
        model, upstream, other = (
            _AUGREG_NAMES[name],
            _make_augreg_path(name, run),
            _make_augreg_path(name, run_224),
        )
        yield _make_row(model, "augreg_in21k", upstream, size, **_PRETRAINED_21K)
        if rate_384:
            facts = {"image_size": 384, "accuracy": accuracy, "accuracy_source": _VIT_README}
            path = f"{upstream}--imagenet2012-steps_20k-lr_{rate_384}-res_384"
            yield _make_row(model, "augreg_in21k_ft_in1k_384", path, None, **facts)
        path = f"{other}--imagenet2012-steps_20k-lr_{rate_224}-res_224"
        yield _make_row(model, "augreg_in21k_ft_in1k_224", path, None)


def _make_augreg_path(name: str, run: str) -> str:
    augmentation, decay, rate = run.split()
    return f"augreg/{name}-i21k-300ep-lr_0.001-aug_{augmentation}-wd_{decay}-do_{rate}-sd_{rate}"


def _make_bit_rows() -> Iterator[CatalogRow]:
    for model in (name for name in RESNET_VARIANTS if name.startswith("BiT_")):
        architecture = model.removeprefix("BiT_")
        accuracy, source = _BIT_ACCURACY.get(architecture, (None, None))
        # 480 is the size of the released fine-tuning rule. timm evaluates all models except R152x4
        # at 448. The models accept any size.
        tuned = {"image_size": 480, "accuracy": accuracy, "accuracy_source": source}
        yield _make_row(
            model,
            "bit_s",
            f"BiT-S-{architecture}",
            None,
            bucket=_BIT_BUCKET,
            transform="resize_small_crop",
        )
        yield _make_row(
            model, "bit_m", f"BiT-M-{architecture}", None, bucket=_BIT_BUCKET, **_PRETRAINED_21K
        )
        yield _make_row(
            model,
            "bit_m_imagenet",
            f"BiT-M-{architecture}-ILSVRC2012",
            None,
            bucket=_BIT_BUCKET,
            **tuned,
        )
    for tag, model, name, image_size, accuracy in _DISTILLED:
        facts = {
            "image_size": image_size,
            "accuracy": accuracy,
            "accuracy_source": accuracy and _BIT_README,
        }
        yield _make_row(
            model,
            tag,
            f"distill/{name}",
            None,
            bucket=_BIT_BUCKET,
            transform="resize_small_crop",
            **facts,
        )


def _make_hub_rows() -> Iterator[CatalogRow]:
    for file in hub_table.FILES:
        variant = FAMILY_VARIANTS[file.model]
        yield CatalogRow(
            model=file.model,
            tag=file.tag,
            url=f"hf://{file.repository}",
            bytes=None,
            bytes_tolerance=0,
            image_size=file.image_size,
            classes=file.classes,
            dataset="imagenet2012" if file.classes == 1000 else None,
            head_is_valid=True,
            has_pre_logits=False,
            gelu=None,
            transform="resize" if variant.crop is None else f"central:{variant.crop:g}",
            accuracy=file.accuracy,
            accuracy_source=file.accuracy_source,
            licence=variant.licence,
            is_gated=file.is_gated,
        )


# The tags that an alias selects from, in order of preference.
_ALIASES = {
    "imagenet": (
        "augreg_in21k_ft_in1k_224",
        "imagenet21k+imagenet2012",
        "bit_m_imagenet",
        "in22k_ft_in1k",
        "in1k",
        "lvd142m_in1k",
    ),
    "imagenet21k": ("imagenet21k", "bit_m"),
}


def _group_by_model(rows: list[CatalogRow]) -> dict[str, dict[str, CatalogRow]]:
    table: dict[str, dict[str, CatalogRow]] = {}
    for model in VARIANTS:
        own = {row.tag: row for row in rows if row.model == model}
        with_head = {tag: row for tag, row in own.items() if row.classes is not None}
        chosen = {
            alias: next((with_head[tag] for tag in tags if tag in with_head), None)
            for alias, tags in _ALIASES.items()
        }
        table[model] = {
            alias: dataclasses.replace(row, tag=alias) for alias, row in chosen.items() if row
        } | own
    return table


def _parse_augreg(name: str) -> CatalogRow:
    stem = name.removeprefix("augreg/").removesuffix(".npz")
    run, dashes, adaptation = stem.partition("--")
    found = _match(run, _AUGREG_RUN, name)
    adapted = _match(adaptation, _AUGREG_ADAPTATION, name) if dashes else None
    model, known = _AUGREG_NAMES[found["model"]], files_named(f"{stem}.npz")
    if known:
        return known[0]
    if adapted:
        dataset, image_size = (
            adapted["adaptation data set"],
            int(adapted["resolution"].removeprefix("res_")),
        )
        facts = {"dataset": dataset, "classes": _ADAPTED_CLASSES[dataset], "image_size": image_size}
    else:
        dataset, classes = _LABELS[found["data set"]]
        facts = {"dataset": dataset, "classes": classes, "transform": "resize_small_crop"}
    return _make_row(model, stem, f"augreg/{stem}", None, **facts)


def _match(text: str, fields: dict[str, str], name: str) -> dict[str, str]:
    """Split at the dashes and match field by field; one error names every field that
    did not parse.
    """
    words = text.split("-")
    pairs = zip(fields.items(), words, strict=False)
    wrong = [
        f"{field} {word!r} ({pattern})"
        for (field, pattern), word in pairs
        if not re.fullmatch(pattern, word)
    ]
    if len(words) != len(fields):
        wrong.append(
            f"{len(words)} fields in {text!r} instead of {len(fields)} ({', '.join(fields)})"
        )
    if wrong:
        raise ValueError(
            f"'{name}' is not the name of an AugReg file. Invalid fields: {'; '.join(wrong)}."
        )
    return dict(zip(fields, words, strict=True))


_FILES = [*_make_paper_rows(), *_make_augreg_rows(), *_make_bit_rows(), *_make_hub_rows()]
_ROWS = _group_by_model(_FILES)
