"""k-nearest-neighbor evaluation of frozen features, with the votes of DINO and DINOv2.

    python experiments/knn.py --model=ViT_B16 --weights=imagenet21k --data=/data/pets,/data/dtd --workdir=runs/knn
    ... [--neighbors=10,20,100,200] [--temperature=0.07] [--layer=pre_logits] [--image_size=224]

Features are scaled to length 1. The k training images with the largest cosine similarity to a test
image vote for their classes, with the weight exp(similarity / temperature).

The default crop, `--crop=resize_crop`, is that of big_vision's few-shot evaluation: the whole image
is resized to a square of 8/7 of the image size, of which the central crop is taken. DINO and DINOv2
publish results with `--crop=central:0.875`: at 224 pixels, the shorter side is resized to 256
pixels, bicubically, before the central crop.

Features are stored in the folder and never computed twice; if interrupted, rerun the same command
to resume. They may be larger than memory. The results are written to `knn.md` and `knn.csv`. For
the values of `--data` and `--model` see `command_line/frozen_features.py`.
"""

import sys
from collections.abc import Mapping, Sequence

import command_line.native_logs

from absl import app, flags
from command_line import frozen_features
from command_line.exit_codes import exit_on_error
from tqdm import tqdm

from keras_vit.evaluate import KnnResult, knn
from keras_vit.evaluate.knn import NEIGHBORS, TEMPERATURE
from keras_vit.weights.secrets import join_command
from keras_vit.writing import table, write_csv, write_text

_NEIGHBORS = flags.DEFINE_list("neighbors", [*map(str, NEIGHBORS)], "Numbers of neighbors.")
_TEMPERATURE = flags.DEFINE_float("temperature", TEMPERATURE, "Temperature of the votes.")
flags.adopt_module_key_flags(frozen_features)  # so that --help shows them


@exit_on_error()
def main(_: list[str]) -> None:
    """Evaluates on every data set, and writes the report after each."""
    try:
        neighbors = [int(text) for text in _NEIGHBORS.value]
    except ValueError:
        raise ValueError(
            f"`--neighbors` takes integers, such as 10,20. Received: {_NEIGHBORS.value}."
        ) from None
    results: dict[str, KnnResult] = {}
    seen: list[frozen_features.Frozen] = []
    for data in frozen_features.frozen():
        seen.append(data)
        arrays = (data.train.values, data.train.labels, data.test.values, data.test.labels)
        with tqdm(total=len(data.test.labels), unit="image", desc=data.name, disable=None) as bar:
            results[data.name] = knn(
                *arrays,
                neighbors=neighbors,
                temperature=_TEMPERATURE.value,
                report=lambda done, _, bar=bar: bar.update(done - bar.n),
            )
        write_report(results, seen)
    print((frozen_features.workdir() / "knn.md").read_text(encoding="utf-8"))


def write_report(results: Mapping[str, KnnResult], seen: Sequence[frozen_features.Frozen]) -> None:
    """Writes the report of the results so far."""
    folder, neighbors = frozen_features.workdir(), next(iter(results.values())).neighbors
    rows = [
        [name, *(f"{100 * value:.2f}" for value in result.accuracies)]
        for name, result in results.items()
    ]
    page = [
        f"# k nearest neighbors: {frozen_features.title()}",
        f"```sh\n{join_command(['python', *sys.argv])}\n```",
        f"Accuracy in %, weighted votes of the k nearest training images, temperature "
        f"{_TEMPERATURE.value:g}.",
        table(["data", *(f"k = {count}" for count in neighbors)], rows),
        *frozen_features.describe(seen),
        "DINO and DINOv2 publish results with `--crop=central:0.875`.",
    ]
    write_text(folder / "knn.md", "\n\n".join(page) + "\n")
    header = ["data", "neighbors", "temperature", "accuracy"]
    write_csv(
        folder / "knn.csv",
        header,
        [
            [name, str(count), f"{_TEMPERATURE.value:g}", f"{value:.6f}"]
            for name, result in results.items()
            for count, value in zip(neighbors, result.accuracies, strict=True)
        ],
    )


if __name__ == "__main__":
    app.run(main)
