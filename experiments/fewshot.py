"""Few-shot linear evaluation: ridge regression on the frozen features of k images per class.

    python experiments/fewshot.py --model=ViT_B16 --weights=imagenet21k --data=/data/pets,/data/dtd --workdir=runs/few
    ... [--shots=1,5,10,25] [--seeds=0,1,2] [--ridge=1024 | --ridge=sweep] [--layer=pre_logits] [--image_size=224]

As in the paper (section 4.1; constants from big_vision), solved in closed form: features before the
head, standardized to mean 0 and standard deviation 1; targets -1 and 1; ridge constant 2^10; images
resized to 256 pixels, with a central crop of 224. `--ridge=sweep` tries the thirty constants 2^-10
to 2^19 and chooses one for all data sets by its mean rank, the older protocol.

Features are stored in the folder and never computed twice; if interrupted, rerun the same command
to resume. The results are written to `fewshot.md`, `fewshot.csv` and `fewshot.png`. For the values
of `--data` and `--model` see `command_line/frozen_features.py`.
"""

import sys
from collections.abc import Mapping, Sequence

import command_line.native_logs

from absl import app, flags
from command_line import frozen_features
from command_line.exit_codes import exit_on_error

from keras_vit.drawing import COLORS, check_can_draw, picture
from keras_vit.evaluate import FewshotResult, fewshot, select_ridge
from keras_vit.evaluate.fewshot import OLDER_SWEEP, SEEDS, SHOTS
from keras_vit.paper import POSITION_EMBEDDINGS
from keras_vit.weights.secrets import join_command
from keras_vit.writing import table, write_csv, write_text

_SHOTS = flags.DEFINE_list("shots", [*map(str, SHOTS)], "Numbers of images per class.")
_SEEDS = flags.DEFINE_list("seeds", [*map(str, SEEDS)], "Seeds that draw the images.")
_RIDGE = flags.DEFINE_string("ridge", "1024", "The ridge constant, or `sweep`.")
flags.adopt_module_key_flags(frozen_features)  # so that --help shows them


@exit_on_error()
def main(_: list[str]) -> None:
    """Evaluates on every data set, and writes the report after each."""
    check_can_draw()
    shots, seeds, ridges = _parse_integers(_SHOTS), _parse_integers(_SEEDS), _parse_ridges()
    results: dict[str, FewshotResult] = {}
    seen: list[frozen_features.Frozen] = []
    for data in frozen_features.frozen():
        seen.append(data)
        arrays = (data.train.values, data.train.labels, data.test.values, data.test.labels)
        names = data.train.class_names
        results[data.name] = fewshot(
            *arrays, class_names=names, shots=shots, seeds=seeds, ridges=ridges
        )
        write_report(results, seen)
    print((frozen_features.workdir() / "fewshot.md").read_text(encoding="utf-8"))


def write_report(
    results: Mapping[str, FewshotResult], seen: Sequence[frozen_features.Frozen]
) -> None:
    """Writes the report of the results so far."""
    folder, chosen = frozen_features.workdir(), select_ridge(results)
    first = next(iter(results.values()))
    rows = [
        [
            name,
            *(
                f"{100 * scores[f'{k}shot']:.2f}" + _format_deviation(scores.get(f"{k}shot_std"))
                for k in result.shots
            ),
        ]
        for name, result in results.items()
        for scores in [result.scores(chosen)]
    ]
    constants = ", ".join(f"{k} shots: {ridge:g}" for k, ridge in chosen.items())
    page = [
        f"# Few-shot: {frozen_features.title()}",
        f"```sh\n{join_command(['python', *sys.argv])}\n```",
        "Accuracy in %, mean"
        + (" and sample standard deviation" if len(first.seeds) > 1 else "")
        + f" over {len(first.seeds)} draws of the images. Ridge constants: {constants}.",
        table(["data", *(f"{k} per class" for k in first.shots)], rows),
        *["Without a deviation: all draws are the same images, since no class has more."]
        * any(len(each.seeds) > 1 and not all(each.draws_differ) for each in results.values()),
        "![](fewshot.png)",
        *frozen_features.describe(seen),
    ]
    if "imagenet" in results and 5 in first.shots:
        percent = POSITION_EMBEDDINGS["learned_1d", "stem"]
        page += [
            f"Published for ViT-B/16 pre-trained on JFT-300M: ImageNet, 5 images per class, "
            f"{percent:.2f} % (Table 8)."
        ]
    write_text(folder / "fewshot.md", "\n\n".join(page) + "\n")
    _write_csv(results)
    _draw(results, chosen)


def _write_csv(results: Mapping[str, FewshotResult]) -> None:
    rows = []
    for name, result in results.items():
        for i, shots in enumerate(result.shots):
            for j, ridge in enumerate(result.ridges):
                for seed, accuracy in zip(result.seeds, result.accuracies[i, j], strict=True):
                    rows.append([name, shots, f"{ridge:g}", seed, f"{accuracy:.6f}"])
    header = ["data", "shots", "ridge", "seed", "accuracy"]
    write_csv(frozen_features.workdir() / "fewshot.csv", header, rows)


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
        axes.set(xlabel="images per class", ylabel="accuracy")
        axes.yaxis.set_major_formatter(lambda percent, _: f"{percent:g}%")
        axes.set_title(
            frozen_features.title(), loc="left", fontweight="bold", wrap=True, parse_math=False
        )
        axes.legend()


def _format_deviation(value: float | None) -> str:
    return "" if value is None else f" ± {100 * value:.2f}"


def _parse_ridges() -> tuple[float, ...]:
    try:
        return OLDER_SWEEP if _RIDGE.value == "sweep" else (float(_RIDGE.value),)
    except ValueError:
        raise ValueError(
            f"`--ridge` must be a number or `sweep`. Received: {_RIDGE.value!r}."
        ) from None


def _parse_integers(flag: flags.FlagHolder) -> tuple[int, ...]:
    try:
        return tuple(map(int, flag.value))
    except ValueError:
        raise ValueError(
            f"`--{flag.name}` must be integers, separated by commas. Received: {flag.value}."
        ) from None


if __name__ == "__main__":
    app.run(main)
