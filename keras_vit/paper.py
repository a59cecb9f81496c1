"""The paper's results as data, for comparison with measured results.

It contains tables 2, 5, 6, 7, 8 and 9 of arXiv:2010.11929 (version 2) and a few numbers from its
text and from its authors. The tables have the layout of the paper, with the names of this package.
Results of this package and tables of other papers are not here.

Pre-training data: `imagenet`, `imagenet21k`, `jft300m`. Data sets: the same `imagenet` (its
validation images) and `imagenet21k`, `imagenet_real` (cleaned-up labels), `cifar10`, `cifar100`,
`pets`, `flowers102`, `objectnet`, `vtab` (the mean of 19 tasks of 1000 examples), `vtab/<task>`,
and `average5`, the mean of `AVERAGE_5`.

The paper contradicts itself in these places; the numbers are as printed:

- ViT-H/14 on JFT-300M, tables 5 and 6: ImageNet 88.04 and 88.08, ReaL 90.33 and 90.36, CIFAR-100
  94.55 and 94.71, Pets 97.56 and 97.11, Flowers 99.68 and 99.71. All other numbers in both tables
  agree; ViT-L/16 is the run of 14 epochs.
- ViT-L/16, tables 2 and 5: separate runs even at the same resolution; they differ by up to 0.21.
- R50+ViT-L/16 for 7 epochs, table 6: 859 exaFLOPs, but half of the 1668 of 14 epochs is 834.

The paper only plots, without numbers, the groups of BiT-L, VIVI and S4L in Figure 2, and Figures 4,
8, 9, 12 and 13. They are not here.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

# The only model of the tables that this package does not implement.
NOISY_STUDENT = "Noisy Student EfficientNet-L2"

# Names of columns are above the rule, names of rows left of the bar. The words left of the bar and
# above the rule are the fields of `Published` that these names belong to. Cells are separated by
# two or more spaces; "-" is an empty cell. The cost of pre-training is written with the name of the
# run; in the paper it is the last row of table 2 and the last column of table 6. Table 9 is
# transposed.

# Means and standard deviations of three fine-tuning runs.
_TABLE_2 = """
               model          | ViT_H14     ViT_L16     ViT_L16      BiT_R152x4  Noisy Student EfficientNet-L2
               pretrained_on  | jft300m     jft300m     imagenet21k  jft300m     jft300m
dataset        tpu_core_days  | 2500        680         230          9900        12300
---
imagenet                      | 88.55±0.04  87.76±0.03  85.30±0.02   87.54±0.02  88.4
imagenet_real                 | 90.72±0.05  90.54±0.03  88.62±0.05   90.54       90.55
cifar10                       | 99.50±0.06  99.42±0.03  99.15±0.03   99.37±0.06  -
cifar100                      | 94.55±0.04  93.90±0.05  93.25±0.05   93.51±0.08  -
pets                          | 97.56±0.03  97.32±0.11  94.67±0.15   96.62±0.23  -
flowers102                    | 99.68±0.02  99.74±0.00  99.61±0.02   99.63±0.03  -
vtab                          | 77.63±0.23  76.28±0.46  72.72±0.21   76.29±1.70  -
"""

# Figure 3.
_TABLE_5 = """
pretrained_on  dataset        model  | ViT_B16  ViT_B32  ViT_L16  ViT_L32  ViT_H14
---
imagenet       cifar10               | 98.13    97.77    97.86    97.94    -
imagenet       cifar100              | 87.13    86.31    86.35    87.07    -
imagenet       imagenet              | 77.91    73.38    76.53    71.16    -
imagenet       imagenet_real         | 83.57    79.56    82.19    77.83    -
imagenet       flowers102            | 89.49    85.43    89.66    86.36    -
imagenet       pets                  | 93.81    92.04    93.64    91.35    -
imagenet21k    cifar10               | 98.95    98.79    99.16    99.13    99.27
imagenet21k    cifar100              | 91.67    91.97    93.44    93.04    93.82
imagenet21k    imagenet              | 83.97    81.28    85.15    80.99    85.13
imagenet21k    imagenet_real         | 88.35    86.63    88.40    85.65    88.70
imagenet21k    flowers102            | 99.38    99.11    99.61    99.19    99.51
imagenet21k    pets                  | 94.43    93.02    94.73    93.09    94.82
jft300m        cifar10               | 99.00    98.61    99.38    99.19    99.50
jft300m        cifar100              | 91.87    90.49    94.04    92.52    94.55
jft300m        imagenet              | 84.15    80.73    87.12    84.37    88.04
jft300m        imagenet_real         | 88.85    86.27    89.99    88.28    90.33
jft300m        flowers102            | 99.56    99.27    99.56    99.45    99.68
jft300m        pets                  | 95.80    93.40    97.11    95.83    97.56
"""

# Figure 5.
_TABLE_6 = """
model        epochs  exaflops  dataset  | imagenet  imagenet_real  cifar10  cifar100  pets   flowers102
---
ViT_B32      7       55                 | 80.73     86.27          98.61    90.49     93.40  99.27
ViT_B16      7       224                | 84.15     88.85          99.00    91.87     95.80  99.56
ViT_L32      7       196                | 84.37     88.28          99.19    92.52     95.83  99.45
ViT_L16      7       783                | 86.30     89.43          99.38    93.46     96.81  99.66
ViT_L16      14      1567               | 87.12     89.99          99.38    94.04     97.11  99.56
ViT_H14      14      4262               | 88.08     90.36          99.50    94.71     97.11  99.71
ResNet50x1   7       50                 | 77.54     84.56          97.67    86.07     91.11  94.26
ResNet50x2   7       199                | 82.12     87.94          98.29    89.20     93.43  97.02
ResNet101x1  7       96                 | 80.67     87.07          98.48    89.17     94.08  95.95
ResNet152x1  7       141                | 81.88     87.96          98.82    90.22     94.17  96.94
ResNet152x2  7       563                | 84.97     89.69          99.06    92.05     95.37  98.62
ResNet152x2  14      1126               | 85.56     89.89          99.24    91.92     95.75  98.75
ResNet200x3  14      3306               | 87.22     90.15          99.34    93.53     96.32  99.04
R50_ViT_B32  7       106                | 84.90     89.15          99.01    92.24     95.75  99.46
R50_ViT_B16  7       274                | 85.58     89.65          99.14    92.63     96.65  99.40
R50_ViT_L32  7       246                | 85.68     89.04          99.24    92.93     96.97  99.43
R50_ViT_L16  7       859                | 86.60     89.72          99.18    93.64     97.03  99.40
R50_ViT_L16  14      1668               | 87.12     89.76          99.31    93.89     97.36  99.11
"""

# Appendix D.1: pre-training of ResNets with Adam and with SGD.
_TABLE_7 = """
            model      | ResNet50x1  ResNet50x1  ResNet152x2  ResNet152x2
dataset     optimizer  | adam        sgd         adam         sgd
---
imagenet               | 77.54       78.24       84.97        84.37
cifar10                | 97.67       97.46       99.06        99.07
cifar100               | 86.07       85.17       92.05        91.06
pets                   | 91.11       91.00       95.37        94.79
flowers102             | 94.26       92.06       98.62        99.32
average5               | 89.33       88.79       94.01        93.72
"""

# Appendix D.4: ViT-B/16, linear, five images per class of ImageNet. The paper does not name the
# pre-training data.
_TABLE_8 = """
embedding   placement  | stem     every_layer  shared
---
none                   | 0.61382  -            -
learned_1d             | 0.64206  0.63964      0.64292
learned_2d             | 0.64001  0.64046      0.64022
relative               | 0.64032  -            -
"""

# Appendix D.10.
_TABLE_9 = """
                           model          | ViT_H14  ViT_L16  ViT_L16
dataset                    pretrained_on  | jft300m  jft300m  imagenet21k
---
vtab/caltech101                           | 95.3     95.4     90.8
vtab/cifar100                             | 85.5     81.9     84.1
vtab/dtd                                  | 75.2     74.3     74.1
vtab/flowers102                           | 99.7     99.7     99.3
vtab/pets                                 | 97.2     96.7     92.7
vtab/sun397                               | 65.0     63.5     61.0
vtab/svhn                                 | 88.9     87.4     80.9
vtab/patch_camelyon                       | 83.3     83.6     82.5
vtab/eurosat                              | 96.7     96.5     95.6
vtab/resisc45                             | 91.4     89.7     85.2
vtab/diabetic_retinopathy                 | 76.6     77.1     75.3
vtab/clevr_count                          | 91.7     86.4     70.3
vtab/clevr_distance                       | 63.8     63.1     56.1
vtab/dmlab                                | 53.1     49.7     41.9
vtab/dsprites_location                    | 79.4     74.5     74.7
vtab/dsprites_orientation                 | 63.3     60.5     64.9
vtab/kitti_distance                       | 84.5     82.2     79.9
vtab/smallnorb_azimuth                    | 33.2     36.2     30.5
vtab/smallnorb_elevation                  | 51.2     51.1     41.7
vtab                                      | 77.6     76.3     72.7
"""

_OBJECTNET = """
model       table                           metric  | top-1  top-5
---
ViT_H14     appendix D.9                            | 61.7   82.1
BiT_R152x4  arXiv:1912.11370 (BiT)                  | 58.7   80.0
"""

# README of github.com/google-research/vision_transformer: results of its code, from the published
# weights of ImageNet-21k.
_README = """
model        image_size  note         dataset  | cifar10  cifar100  imagenet
---
R50_ViT_B16  384         dropout 0.0           | 98.72    90.88     83.72
R50_ViT_B16  384         dropout 0.1           | 98.94    92.30     85.08
ViT_B16      384         dropout 0.0           | 99.02    92.06     84.53
ViT_B16      384         dropout 0.1           | 98.76    91.92     84.12
ViT_B32      384         dropout 0.0           | 98.88    92.31     81.66
ViT_B32      384         dropout 0.1           | 98.75    92.05     81.31
ViT_L16      384         dropout 0.0           | 99.13    92.91     84.47
ViT_L16      384         dropout 0.1           | 99.14    93.22     85.05
ViT_L32      384         dropout 0.0           | 99.06    93.29     81.89
ViT_L32      384         dropout 0.1           | 99.09    93.34     81.13
ViT_B16      384         500 steps             | 98.59    89.17     -
ViT_B16      384         1000 steps            | 98.86    91.15     -
ViT_B16      224         expected              | -        -         81.2
ViT_L16      224         expected              | -        -         82.7
"""

# Validation accuracy of the pre-trained head. In the published files of ImageNet-21k this head is
# all zeros.
_UPSTREAM = """
                   dataset        | imagenet  imagenet21k
model              pretrained_on  | imagenet  imagenet21k
---
ViT_B32                           | 69.19     44.04
ViT_B16                           | 74.79     47.88
ViT_L32                           | 66.90     45.42
ViT_L16                           | 72.59     49.90
ViT_H14                           | -         49.06
"""

AVERAGE_5 = ("imagenet", "cifar10", "cifar100", "pets", "flowers102")
VTAB_GROUPS: dict[str, tuple[str, ...]] = {
    "natural": ("caltech101", "cifar100", "dtd", "flowers102", "pets", "sun397", "svhn"),
    "specialized": ("patch_camelyon", "eurosat", "resisc45", "diabetic_retinopathy"),
    "structured": (
        *(
            "clevr_count",
            "clevr_distance",
            "dmlab",
            "dsprites_location",
            "dsprites_orientation",
            "kitti_distance",
        ),
        *("smallnorb_azimuth", "smallnorb_elevation"),
    ),
}

_INTEGERS = ("image_size", "epochs", "exaflops", "tpu_core_days")
_LARGE_IMAGES = {"ViT_L16": 512, "ViT_H14": 518}
_NOTES = {
    "BiT_R152x4": "BiT-L (arXiv:1912.11370)",
    NOISY_STUDENT: "JFT-300M without its labels; on ImageNet 88.5 for FixEfficientNet-L2 (arXiv:2003.08237)",
    "ResNet": "or by BiT's rule, whichever was better (B.1.1)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A published number and how it was measured.

    Attributes:
        model: As in `variants.py`, or `NOISY_STUDENT`.
        pretrained_on, dataset: Pre-training data and evaluation data; keys as at the top of this
            module.
        accuracy: In percent; for `vtab` and `average5` the mean over the tasks.
        std: Standard deviation over fine-tuning runs, in percent; None if not printed.
        table: Where the number is published: "Table 5", or in a few words.
        protocol: How it was measured, such as "fine-tuned".
        image_size: Side of the images in pixels; None if the source does not state it.
        metric: "top-1" or "top-5".
        epochs: Epochs of pre-training; None if the source does not state it.
        optimizer: Of pre-training, "adam" or "sgd"; None if the table does not compare the two.
        exaflops, tpu_core_days: Cost of pre-training. TPU core days are TPUv3 cores (two per chip)
            times days.
        note: A remark on this number, or "".

    Example:
        >>> published(model="ViT_B16", pretrained_on="imagenet", dataset="imagenet", table="Table 5")[0].accuracy
        77.91
    """

    model: str
    pretrained_on: str
    dataset: str
    accuracy: float
    std: float | None = None
    table: str
    protocol: str = "fine-tuned"
    image_size: int | None
    metric: str = "top-1"
    epochs: int | None = None
    optimizer: str | None = None
    exaflops: int | None = None
    tpu_core_days: int | None = None
    note: str = ""


def _parse_cells(text: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields (names of row and column by field, content) of each cell that is not empty."""
    lines = [
        [re.split(r"\s{2,}", side.strip()) for side in line.split("|")]
        for line in text.strip().splitlines()
    ]
    rule = lines.index([["---"]])
    fields = (*lines[rule - 1][0][:-1], *(left[-1] for left, _ in lines[:rule]))
    for row, cells in lines[rule + 1 :]:
        for *column, cell in zip(*(names for _, names in lines[:rule]), cells, strict=True):
            if cell != "-":
                yield dict(zip(fields, (*row, *column), strict=True)), cell


def _parse_rows(text: str, **shared: Any) -> Iterator[Published]:
    for names, cell in _parse_cells(text):
        names.setdefault(
            "note",
            "".join(note for start, note in _NOTES.items() if names["model"].startswith(start)),
        )
        numbers: dict[str, Any] = {key: int(names[key]) for key in _INTEGERS if key in names}
        accuracy, _, std = cell.partition("±")
        yield Published(
            **{**shared, **names, **numbers},
            accuracy=float(accuracy),
            std=float(std) if std else None,
        )


def _parse_table_2() -> Iterator[Published]:
    for row in _parse_rows(_TABLE_2, table="Table 2", image_size=384):
        if row.model not in _LARGE_IMAGES:
            row = replace(row, image_size=None, protocol="from the literature")
        # Section 4.1. ReaL has other labels for the same images, so the same setting applies.
        elif row.dataset in ("imagenet", "imagenet_real"):
            row = replace(
                row,
                image_size=_LARGE_IMAGES[row.model],
                protocol="fine-tuned, Polyak averaging 0.9999",
            )
        yield row


def _parse_table_6() -> Iterator[Published]:
    """Yields Table 6, then the averages of Figure 5, which the paper only plots."""
    five: dict[int | None, list[Published]] = {}
    for row in _parse_rows(_TABLE_6, table="Table 6", image_size=384, pretrained_on="jft300m"):
        if row.exaflops == 859:
            row = replace(
                row, note="859 exaFLOPs are printed; half of the 1668 of 14 epochs is 834"
            )
        yield row
        if row.dataset in AVERAGE_5:
            # The cost identifies a run: no two runs have the same.
            five.setdefault(row.exaflops, []).append(row)
    for rows in five.values():
        mean = round(sum(row.accuracy for row in rows) / len(rows), 2)
        yield replace(
            rows[0],
            dataset="average5",
            accuracy=mean,
            note=f"not printed; {rows[0].note}".strip("; "),
        )


PUBLISHED: tuple[Published, ...] = (
    *_parse_table_2(),
    *_parse_rows(_TABLE_5, table="Table 5", image_size=384),
    *_parse_table_6(),
    *_parse_rows(_TABLE_7, table="Table 7", image_size=384, pretrained_on="jft300m", epochs=7),
    *_parse_rows(_TABLE_9, table="Table 9", image_size=384, protocol="fine-tuned on 1000 examples"),
    *_parse_rows(
        _OBJECTNET,
        pretrained_on="jft300m",
        dataset="objectnet",
        image_size=None,
        protocol="as in BiT's paper",
    ),
    *_parse_rows(
        _README, table="README of google-research/vision_transformer", pretrained_on="imagenet21k"
    ),
    *_parse_rows(
        _UPSTREAM, table="the authors on GitHub", image_size=224, protocol="not fine-tuned"
    ),
)
"""All numbers, in the order of the tables, then those of the text and of the authors' code."""

POSITION_EMBEDDINGS: dict[tuple[str, str], float] = {
    (names["embedding"], names["placement"]): round(100 * float(cell), 3)
    for names, cell in _parse_cells(_TABLE_8)
}
"""Table 8: 5-shot accuracy on ImageNet in percent, by (`position_embedding`, `position_placement`)
of a ViT.
"""


def published(
    *,
    model: str | None = None,
    pretrained_on: str | None = None,
    dataset: str | None = None,
    table: str | None = None,
    image_size: int | None = None,
) -> list[Published]:
    """Returns the published numbers that match all arguments, in the order of the tables.

    A model may have several numbers, at several resolutions or with several lengths of
    pre-training. They are from arXiv:2010.11929 unless their `table` names another source.

    Args:
        model: As in `variants.py`. The result is empty for models without published numbers.
        pretrained_on, dataset: One of the keys at the top of this module.
        table: Such as "Table 6".
        image_size: In pixels. It sorts the result: nearest size first, unknown sizes last.

    Raises:
        ValueError: If no number has this data set, this pre-training data or this table.

    Example:
        >>> best = published(model="ViT_L16", pretrained_on="imagenet21k", dataset="imagenet", image_size=384)[0]
        >>> f"{best.accuracy} % ({best.table}: {best.protocol} at {best.image_size} px)"
        '85.15 % (Table 5: fine-tuned at 384 px)'
        >>> [(row.exaflops, row.accuracy) for row in published(table="Table 6", dataset="average5")][:2]
        [(55, 92.5), (224, 94.08)]
    """
    wanted = {"pretrained_on": pretrained_on, "dataset": dataset, "table": table}
    known = {field: dict.fromkeys(getattr(row, field) for row in PUBLISHED) for field in wanted}
    unknown = [
        field for field, value in wanted.items() if value is not None and value not in known[field]
    ]
    if unknown:
        raise ValueError(
            " ".join(
                f"No number has {key}={wanted[key]!r}. Known values: {', '.join(known[key])}."
                for key in unknown
            )
        )
    wanted["model"] = model
    rows = [
        row
        for row in PUBLISHED
        if all(value in (None, getattr(row, key)) for key, value in wanted.items())
    ]
    if image_size is None:
        return rows
    return sorted(
        rows,
        key=lambda row: math.inf if row.image_size is None else abs(row.image_size - image_size),
    )


def vtab_scores(model: str, pretrained_on: str) -> dict[str, float]:
    """Returns the accuracies of one model in Table 9 of arXiv:2010.11929, in percent, by task, in
    the order of its columns.

    Raises:
        ValueError: If the model is not in the table.

    Example:
        >>> list(vtab_scores("ViT_H14", "jft300m").items())[:2]
        [('caltech101', 95.3), ('cifar100', 85.5)]
    """
    run = model, pretrained_on
    # The row `vtab` is the mean of the tasks.
    rows = [row for row in published(table="Table 9") if row.dataset != "vtab"]
    scores = {
        row.dataset.removeprefix("vtab/"): row.accuracy
        for row in rows
        if (row.model, row.pretrained_on) == run
    }
    if not scores:
        there = ", ".join(dict.fromkeys(f"{row.model} on {row.pretrained_on}" for row in rows))
        raise ValueError(
            f"Table 9 has no {model} pre-trained on {pretrained_on}. It contains: {there}."
        )
    return scores


def vtab_means(scores: Mapping[str, float]) -> dict[str, float]:
    """Returns the mean accuracy over VTAB's 19 tasks, `all`, and over the tasks of each group.

    Args:
        scores: Accuracy of each of the 19 tasks, in any order.

    Raises:
        ValueError: If tasks are missing or unknown.

    Example:
        >>> {name: round(mean, 2) for name, mean in vtab_means(vtab_scores("ViT_H14", "jft300m")).items()}
        {'all': 77.63, 'natural': 86.69, 'specialized': 87.0, 'structured': 65.03}

    Source: arXiv:2010.11929, section 4.1.
    """
    tasks = [task for group in VTAB_GROUPS.values() for task in group]
    missing, unknown = (
        [task for task in tasks if task not in scores],
        [task for task in scores if task not in tasks],
    )
    if missing or unknown:
        raise ValueError(
            "A mean of VTAB needs exactly its 19 tasks. "
            f"Missing: {', '.join(missing) or 'none'}. Unknown: {', '.join(unknown) or 'none'}. "
            "Evaluate the missing tasks and omit the unknown ones."
        )
    groups = {"all": tasks, **VTAB_GROUPS}
    return {
        name: sum(scores[task] for task in group) / len(group) for name, group in groups.items()
    }


def vtab_bars() -> dict[tuple[str, str], dict[str, float]]:
    """Returns the bars of Figure 2 for which numbers are published: for each (model, pre-training
    data), the accuracy in percent by panel.

    `all` is the mean in Table 2. The groups are means over Table 9, which contains only ViTs.

    Example:
        >>> vtab_bars()["BiT_R152x4", "jft300m"]
        {'all': 76.29}
    """
    in_table_9 = {(row.model, row.pretrained_on) for row in published(table="Table 9")}
    bars: dict[tuple[str, str], dict[str, float]] = {}
    for row in published(table="Table 2", dataset="vtab"):
        key = row.model, row.pretrained_on
        bars[key] = (vtab_means(vtab_scores(*key)) if key in in_table_9 else {}) | {
            "all": row.accuracy
        }
    return bars
