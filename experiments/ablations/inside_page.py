"""What `inside.csv` says: tables, verdicts on what the paper sees inside a trained model, pictures.
It depends on this file and the study alone: the same files give the same bytes.

Source: arXiv:2010.11929, section 4.5, Figure 7.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from ablations.arms import Study
from ablations.inside import (
    DISTANCE,
    EXPLAINED,
    FILTER,
    NUM_IMAGES,
    SIMILARITY,
    Finding,
)
from ablations.report import wrap
from ablations.verdicts import judge
from keras_vit.analyze.attention_arithmetic import distances_px
from keras_vit.analyze.plots import draw_distance, draw_filters, draw_similarity
from keras_vit.train.config import row_of
from keras_vit.writing import table

LEAST_DISTANCE = 3  # patches
PAPER_UNIFORM = 115.9  # px: 14 x 14 patches of 16 pixels and a class token, which has distance 0
Arrays = Mapping[str, Mapping[int, np.ndarray]]  # by quantity and by seed


def grow_with_depth(distances: np.ndarray) -> float:
    """Returns by how many pixels the mean attention distance of the last layer exceeds that of the
    first.

    Args:
        distances: (L, A) mean distance of each head.
    """
    return float(distances[-1].mean() - distances[0].mean())


def prefer_near(similarity: np.ndarray) -> float:
    """Returns the rank correlation of the closeness of two patches, which is minus their distance,
    and the similarity of their position embeddings.

    Args:
        similarity: (N, N) cosines; patches are numbered row by row in a square grid.
    """
    rows, columns = _offsets(len(similarity))
    pairs = ~np.eye(len(similarity), dtype=bool)
    return -float(spearmanr(np.hypot(rows, columns)[pairs], similarity[pairs]).statistic)


def prefer_axes(similarity: np.ndarray) -> float:
    """Returns by how much position embeddings in the same row or column are more similar than others
    at the same distance: the mean over the distances, rounded to whole patches, from 3 on. Pairs at a
    rounded distance of 1 or 2 that share no row and no column are farther apart than those that do.

    Patches at the border are similar to each other, and many pairs in a row or column are such
    patches. So a pair is compared with pairs whose two distances to the border are the same.

    Args:
        similarity: As in `prefer_near`.
    """
    rows, columns = _offsets(len(similarity))
    distances, on_axis = np.rint(np.hypot(rows, columns)), (rows == 0) | (columns == 0)
    borders = _find_border_pairs(len(similarity))
    means = []
    for distance in range(LEAST_DISTANCE, math.isqrt(len(similarity))):
        at, differences, counts = distances == distance, [], []
        for pair in np.unique(borders[at]):
            here = at & (borders == pair)
            on, off = similarity[here & on_axis], similarity[here & ~on_axis]
            if len(on) and len(off):
                differences.append(on.mean() - off.mean())
                counts.append(len(on))
        means.append(float(np.average(differences, weights=counts)))
    return statistics.fmean(means)


# words, quantity, value, unit, decimals
CLAIMS: tuple[tuple[str, str, Callable[[np.ndarray], float], str, int], ...] = (
    (
        "Attention distance increases with depth: last layer minus first.",
        DISTANCE,
        grow_with_depth,
        "px",
        1,
    ),
    (
        "Closer patches have more similar position embeddings: rank correlation of closeness and "
        "similarity.",
        SIMILARITY,
        prefer_near,
        "",
        2,
    ),
    (
        "Patches in the same row or column have more similar position embeddings than others at the "
        "same distance from each other and from the border: difference of the cosines.",
        SIMILARITY,
        prefer_axes,
        "",
        2,
    ),
)


def make_inside(
    plan: Mapping[str, Any], study: Study, findings: Sequence[Finding], docs: Path
) -> list[str]:
    """Writes the pictures, and returns the part of the page about the insides of trained models.

    Args:
        plan: Plan of the study.
        study: The study.
        findings: All rows of its `inside.csv`.
        docs: Folder of the page.
    """
    part = []
    for arm in dict.fromkeys(finding.arm for finding in findings):
        of_arm = [finding for finding in findings if finding.arm == arm]
        arrays, uniform = _collect(of_arm), find_uniform_distance(study, arm)
        start = f"results_{plan['study']}_{arm}"
        drawn = draw_inside(docs, start, arrays, uniform)
        title = study.arms[arm].title if arm in study.arms else arm.replace("_", " ")
        stage = "pre-trained" if arm in study.starts else "trained"
        part += [
            f"### Inside the {stage} models: {title}",
            _explain(len(arrays[DISTANCE]), uniform),
            _make_layer_table([*arrays[DISTANCE].values()]),
            make_inside_verdicts(of_arm, plan),
            *(f"![{title}: {words}]({start}_{kind}.png)" for kind, words in drawn.items()),
        ]
    return part


def make_inside_verdicts(findings: Sequence[Finding], plan: Mapping[str, Any]) -> str:
    """Returns the table of verdicts on one arm. Its arguments are those of `judge_inside`."""
    return table(["claim", "here"], judge_inside(findings, plan))


def judge_inside(findings: Sequence[Finding], plan: Mapping[str, Any]) -> list[list[str]]:
    """Returns the claims of the paper about the insides of models, each with the verdict on one arm.

    Args:
        findings: The rows of this arm.
        plan: Plan of the study; its entries "size" and "seeds" are used.
    """
    arrays = _collect(findings)

    def give_verdict(quantity: str, value: Callable[..., float], unit: str, digits: int) -> str:
        if plan["size"] == "smoke":
            return "not judged: a smoke run"
        if [*arrays[quantity]] != [*range(plan["seeds"])]:
            return f"not decided: measured in {len(arrays[quantity])} of {plan['seeds']} runs"
        return judge([value(array) for array in arrays[quantity].values()], unit, digits=digits)

    return [
        [words, give_verdict(quantity, *rest)]
        for words, quantity, *rest in CLAIMS
        if quantity in arrays
    ]


def draw_inside(docs: Path, start: str, arrays: Arrays, uniform: float) -> dict[str, str]:
    """Draws `<start>_filters.png`, `<start>_positions.png` and `<start>_distance.png`.

    Args:
        docs: Folder of the pictures.
        start: Start of their names.
        arrays: The quantities. Filters and positions are drawn of the smallest seed.
        uniform: Mean distance in pixels with uniform attention.

    Returns:
        What each picture shows, by its kind.
    """
    first = min(arrays[FILTER])
    filters, explained = arrays[FILTER][first], arrays[EXPLAINED][first][0]
    side = math.isqrt(filters.shape[1] // 3)
    draw_filters(docs / f"{start}_filters.png", filters.reshape(-1, side, side, 3), explained)
    heads = np.concatenate([*arrays[DISTANCE].values()], axis=1)
    draw_distance(docs / f"{start}_distance.png", heads, uniform_px=uniform)
    drawn = {
        "filters": f"filters of the patch embedding, seed {first}",
        "distance": "attention distance by depth, heads of all seeds",
    }
    if SIMILARITY in arrays:
        similarity = arrays[SIMILARITY][first]
        grid = math.isqrt(len(similarity))
        shape = (grid, grid, grid, grid)
        draw_similarity(docs / f"{start}_positions.png", {"": similarity.reshape(shape)})
        drawn["positions"] = f"similarity of the position embeddings, seed {first}"
    return drawn


def _collect(findings: Sequence[Finding]) -> Arrays:
    lists: dict[str, dict[int, list[list[float]]]] = {}
    for finding in findings:
        seeds = lists.setdefault(finding.quantity, {})
        seeds.setdefault(finding.seed, []).append(finding.values)
    return {
        quantity: {seed: np.array(seeds[seed]) for seed in sorted(seeds)}
        for quantity, seeds in lists.items()
    }


def find_uniform_distance(study: Study, arm: str) -> float:
    """Returns the mean attention distance in pixels of a head that attends to all tokens equally.

    Args:
        study: The study.
        arm: Name of an arm or of a start.
    """
    config = study.arms[arm].config if arm in study.arms else study.starts[arm]
    patch = row_of(config.model, config.variant).total_stride
    grid = config.image_size // patch
    # a class token takes its share of the attention, at distance 0
    options = config.model_options
    tokens = grid**2 + (options.get("classifier", "token") == "token")
    return float(distances_px((grid, grid), (patch, patch)).mean() * grid**2 / tokens)


def _explain(num_models: int, uniform: float) -> str:
    return wrap(
        f"The quantities of Figure 7, of {num_models} models. The attention distance of a "
        "head is the mean distance between a patch and the patches that it attends to, weighted by "
        f"its attention, over {NUM_IMAGES} test images of CIFAR-10. With uniform attention it is "
        f"{uniform:.1f} px: a head with a value near it may attend to all patches alike. In the "
        f"paper, of ViT-L/16 with 24 layers at 224 pixels (uniform attention: {PAPER_UNIFORM} px), "
        "the heads of the lowest layers range from local to the whole image, and the mean grows with "
        "depth; of ViT-L/32, close patches and patches in the same row or column have similar "
        "position embeddings."
    )


def _make_layer_table(distances: Sequence[np.ndarray]) -> str:
    lines = []
    for layer in range(len(distances[0])):
        each = [array[layer] for array in distances]
        means = [float(heads.mean()) for heads in each]
        deviation = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
        lines.append(
            [
                str(layer + 1),
                f"{statistics.fmean(means):.1f}{deviation}",
                f"{min(heads.min() for heads in each):.1f}",
                f"{max(heads.max() for heads in each):.1f}",
            ]
        )
    return table(
        ["layer", "mean attention distance, px", "shortest of a head", "longest of a head"], lines
    )


def _offsets(num_patches: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distances in rows and in columns of all pairs of patches, each (N, N)."""
    side = math.isqrt(num_patches)
    rows, columns = np.divmod(np.arange(num_patches), side)
    return np.abs(rows[:, None] - rows), np.abs(columns[:, None] - columns)


def _find_border_pairs(num_patches: int) -> np.ndarray:
    """Returns a number for each pair of patches, (N, N), which is the same for pairs whose two
    distances to the border are the same.
    """
    side = math.isqrt(num_patches)
    rows, columns = np.divmod(np.arange(num_patches), side)
    borders = np.minimum(np.minimum(rows, side - 1 - rows), np.minimum(columns, side - 1 - columns))
    one, other = borders[:, None], borders[None, :]
    return side * np.minimum(one, other) + np.maximum(one, other)
