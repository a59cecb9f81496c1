"""Few-shot linear evaluation: ridge regression on frozen features of k images of each class, in
closed form.

    python experiments/fewshot.py --model=ViT_B16 --weights=imagenet21k --data=/data/pets,/data/dtd --workdir=runs/few
    ... [--shots=1,5,10,25] [--seeds=0,1,2] [--ridge=1024 | --ridge=sweep] [--layer=pre_logits] [--image_size=224]

As in the paper (section 4.1; the constants are those of big_vision): features in front of the head,
scaled to mean 0 and deviation 1, targets of -1 and 1, ridge constant 2^10, images resized to 256 of
which the middle 224 are seen. With `--ridge=sweep` the thirty constants 2^-10 to 2^19 are tried,
and one is chosen for all data sets by its mean rank, as was done before that constant was fixed.

Features are kept in the folder; the same command computes none twice, and goes on after a kill.
What comes out: `fewshot.md`, `fewshot.csv`, `fewshot.png`. What `--data` and `--model` take: see
`command_line/frozen_features.py`.
"""

import csv
import shlex
import sys
from collections.abc import Mapping

import command_line.native_logs

from absl import app, flags
from command_line import frozen_features
from command_line.exit_codes import exit_code

from keras_vit.drawing import COLORS, check_can_draw, picture
from keras_vit.evaluate import FewshotResult, fewshot, select_ridge
from keras_vit.evaluate.fewshot import OLDER_SWEEP, SEEDS, SHOTS
from keras_vit.paper import POSITION_EMBEDDINGS
from keras_vit.writing import table, write_atomically, write_text

_SHOTS = flags.DEFINE_list("shots", [*map(str, SHOTS)], "Images of each class.")
_SEEDS = flags.DEFINE_list("seeds", [*map(str, SEEDS)], "Of the draws.")
_RIDGE = flags.DEFINE_string("ridge", "1024", "The ridge constant, or `sweep`.")
flags.adopt_module_key_flags(frozen_features)  # so that --help shows them


def main() -> None:
    """Evaluates on every data set, and reports after each."""
    check_can_draw()
    shots, seeds, ridges = _integers(_SHOTS), _integers(_SEEDS), _ridges()
    results: dict[str, FewshotResult] = {}
    for data in frozen_features.frozen():
        arrays = (data.train.values, data.train.labels, data.test.values, data.test.labels)
        names = data.train.class_names
        results[data.name] = fewshot(
            *arrays, class_names=names, shots=shots, seeds=seeds, ridges=ridges
        )
        report(results)
    print((frozen_features.workdir() / "fewshot.md").read_text(encoding="utf-8"))


def report(results: Mapping[str, FewshotResult]) -> None:
    """Writes what there is so far."""
    folder, chosen = frozen_features.workdir(), select_ridge(results)
    first = next(iter(results.values()))
    rows = [
        [
            name,
            *(
                f"{100 * scores[f'{k}shot']:.2f}" + _deviation(scores.get(f"{k}shot_std"))
                for k in result.shots
            ),
        ]
        for name, result in results.items()
        for scores in [result.scores(chosen)]
    ]
    constants = ", ".join(f"{k} shots: {ridge:g}" for k, ridge in chosen.items())
    page = [
        f"# Few-shot: {frozen_features.title()}",
        f"```sh\n{shlex.join(['python', *sys.argv])}\n```",
        "Accuracy in %, mean"
        + (" and sample deviation" if len(first.seeds) > 1 else "")
        + f" over {len(first.seeds)} draws of the images. Ridge constants: {constants}.",
        table(["data", *(f"{k} of each class" for k in first.shots)], rows),
        "![](fewshot.png)",
    ]
    if "imagenet" in results and 5 in first.shots:
        percent = POSITION_EMBEDDINGS["learned_1d", "stem"]
        page += [
            f"Published, ViT-B/16 pre-trained on JFT-300M: ImageNet, 5 of each class, "
            f"{percent:.2f} % (Table 8)."
        ]
    write_text(folder / "fewshot.md", "\n\n".join(page) + "\n")
    _write_csv(results)
    _draw(results, chosen)


def _write_csv(results: Mapping[str, FewshotResult]) -> None:
    path = frozen_features.workdir() / "fewshot.csv"
    with (
        write_atomically(path) as partial,
        open(partial, "w", encoding="utf-8", newline="") as file,
    ):
        rows = csv.writer(file)
        rows.writerow(["data", "shots", "ridge", "seed", "accuracy"])
        for name, result in results.items():
            for i, shots in enumerate(result.shots):
                for j, ridge in enumerate(result.ridges):
                    for seed, accuracy in zip(result.seeds, result.accuracies[i, j], strict=True):
                        rows.writerow([name, shots, f"{ridge:g}", seed, f"{accuracy:.6f}"])


def _draw(results: Mapping[str, FewshotResult], chosen: Mapping[int, float]) -> None:
    with picture(frozen_features.workdir() / "fewshot.png", 7, 4.5) as figure:
        axes = figure.subplots()
        for number, (name, result) in enumerate(results.items()):
            scores = result.scores(chosen)
            means = [100 * scores[f"{k}shot"] for k in result.shots]
            spread = [100 * scores.get(f"{k}shot_std", 0.0) for k in result.shots]
            color = COLORS[number % len(COLORS)]
            axes.errorbar(result.shots, means, spread, fmt="o-", color=color, capsize=3, label=name)
        axes.set_xscale("log")
        axes.set_xticks(result.shots, [str(k) for k in result.shots])
        axes.minorticks_off()
        axes.set(xlabel="images of each class", ylabel="accuracy")
        axes.yaxis.set_major_formatter(lambda percent, _: f"{percent:g}%")
        axes.set_title(
            frozen_features.title(), loc="left", fontweight="bold", wrap=True, parse_math=False
        )
        axes.legend()


def _deviation(value: float | None) -> str:
    return "" if value is None else f" ± {100 * value:.2f}"


def _ridges() -> tuple[float, ...]:
    try:
        return OLDER_SWEEP if _RIDGE.value == "sweep" else (float(_RIDGE.value),)
    except ValueError:
        raise ValueError(
            f"`--ridge` is a number, or `sweep`. Received: {_RIDGE.value!r}."
        ) from None


def _integers(flag: flags.FlagHolder) -> tuple[int, ...]:
    try:
        return tuple(map(int, flag.value))
    except ValueError:
        raise ValueError(
            f"`--{flag.name}` takes whole numbers, separated by commas. Received: {flag.value}."
        ) from None


if __name__ == "__main__":
    app.run(lambda _: exit_code(main))
