"""The commands of the package and of the experiments in their smallest form, for campaigns that
interrupt them.

Each is called as a user calls it, and ends with its exit code. It reads what `inputs` has written,
and writes into `out` below its root. What is set apart from a user's call: the runs of a sweep and
of an ablation are forked from the warm server, features are saved after each batch, and there is an
ablation of one tiny arm.
"""

import contextlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
EXPERIMENTS = TESTS.parent / "experiments"
sys.path[:0] = [str(TESTS), str(EXPERIMENTS)]  # as Python does for scripts in these folders

RECIPE = """
from dataclasses import replace
from keras_vit.train import *

def get_config(arg):
    data = DataConfig(kind="digits", crop="resize", flip=False)
    optimizer = OptimizerConfig(name="sgd", options={}, learning_rate=0.01, schedule="linear", warmup_steps=1)
    loop = LoopConfig(total_steps=3, log_every=1, evaluate_every=2, checkpoint_every=1, keep_checkpoints=1)
    run = RunConfig(data=data, optimizer=optimizer, batch_size=4, eval_batch_size=360, loop=loop)
    run = replace(run, devices=DevicesConfig(kind="one"))
    row = {"name": "tiny", "patch_size": 8, "width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}
    if arg == "short":  # one step, evaluated once
        short = replace(optimizer, warmup_steps=0)
        run = replace(run, optimizer=short, loop=LoopConfig(total_steps=1, log_every=1))
    if arg == "mae":
        decoder = {"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}
        return MAEConfig(run=run, model="ViT_Ti16", variant=row, image_size=16, **decoder)
    kind = MaskedPatchesConfig if arg == "masked" else PretrainConfig
    return kind(run=run, model="ViT_Ti16", variant=row, image_size=16)
"""


# ---- inputs


def write_inputs(folder: Path) -> None:
    """Writes what the commands read: a recipe, images, a model."""
    import numpy as np
    from PIL import Image

    import keras_vit

    (folder / "recipe.py").write_text(RECIPE)
    rng = np.random.default_rng(0)
    for name in ("train/cat", "train/dog", "test/cat", "test/dog"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(3):
            pixels = rng.integers(0, 256, (16, 16, 3)).astype("uint8")
            Image.fromarray(pixels).save(folder / "images" / name / f"{number}.png")
    model = _new_model()
    model.save(folder / "model.keras")
    keras_vit.save_checkpoint(model, folder / "model.npz")


def _new_model() -> Any:
    from dataclasses import replace

    import keras

    import keras_vit
    from keras_vit.variants import VIT_VARIANTS

    keras.utils.set_random_seed(0)
    sizes = {"patch_size": 8, "width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}
    row = replace(VIT_VARIANTS["ViT_Ti16"], name="tiny", **sizes)
    return keras_vit.application(row)(weights=None, input_shape=(16, 16, 3), classes=3)


# ---- commands


def _script(name: str, arguments: Sequence[str]) -> None:
    sys.argv = [str(EXPERIMENTS / name), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


def _recipe(script: str, argument: str = "", *options: str) -> Callable[[Path, Path], Any]:
    def run(inputs: Path, out: Path) -> None:
        _script(script, [f"--config={inputs}/recipe.py:{argument}", f"--workdir={out}", *options])

    return run


def _python(function: Callable[[Path, Path], Any]) -> Callable[[Path, Path], Any]:
    """A call from Python, in a script that ends as ours do."""

    def run(inputs: Path, out: Path) -> None:
        from command_line.exit_codes import exit_on_error

        with exit_on_error():
            function(inputs, out)

    return run


def _finetune(inputs: Path, out: Path) -> None:
    import keras

    import keras_vit

    model = keras.models.load_model(inputs / "model.keras")
    keras_vit.finetune(model, inputs / "images", out, steps=2, batch_size=4)


def _sweep(inputs: Path, out: Path) -> None:
    _fork_trials(inputs / "processes")
    _recipe("sweep.py", "short", "--learning_rates=0.01", "--held_out=0.25", "--seeds=1")(
        inputs, out
    )


_ABLATION = ["--study=tiny", "--size=smoke"]
_ABLATION += [
    f"--config.run.loop.{name}=1" for name in ("log_every", "evaluate_every", "checkpoint_every")
]
_ABLATION += ["--config.run.loop.total_steps=3"]


def _ablations(inputs: Path, out: Path) -> None:
    _fork_trials(inputs / "processes")
    _ablation([*_ABLATION, f"--workdir={out}", "--seeds=1"])


def _ablation_run(inputs: Path, out: Path) -> None:
    _ablation([*_ABLATION, f"--workdir={out}", "--only=tiny/seed_0", "--rate=0.001"])


def _ablation(arguments: Sequence[str]) -> None:
    from ablations import rates, studies
    from ablations.arms import Arm, Study, change_config

    def tiny(base: Any, smoke: bool) -> Study:
        config = change_config(base, data={"held_out": 0.25, "crop": "resize", "crop_area": 0.05})
        return Study(
            title="Tiny",
            source="none",
            finding="None.",
            about="One arm.",
            arms={"tiny": Arm(title="tiny", config=config)},
        )

    studies.STUDIES["tiny"] = tiny
    # three steps find no rate inside the grid: the best of the grid is taken, also at its edge
    rates._is_at_edge = lambda winner, tried: winner is None
    _script("ablations.py", arguments)


def _fork_trials(notes: Path) -> None:
    """Starts the runs of an experiment as forks, in milliseconds; they survive the process that
    started them.
    """
    import psutil
    import warm

    notes.mkdir(exist_ok=True)

    class Forked(psutil.Process):
        def __init__(
            self, command: list[str], *, start_new_session: bool, stdin: int, **options: Any
        ):
            sys.audit("subprocess.Popen", command[0], command, None, None)
            self._forked = warm.Popen([command[0], __file__, "trial", *command[1:]], **options)
            super().__init__(self._forked.pid)
            (notes / str(self.pid)).write_text("\0".join(command))

        def poll(self) -> int | None:
            return self._forked.poll()

        @property
        def returncode(self) -> int | None:
            return self._forked.returncode

        def terminate(self) -> None:
            self._forked.terminate()

    def processes(_: Sequence[str]) -> Iterator[psutil.Process]:
        """Records the command of each fork: the process table shows the server's command line
        instead.
        """
        for note in notes.iterdir():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(note.name))
                process.info = {"cmdline": note.read_text().split("\0")}
                yield process

    psutil.Popen, psutil.process_iter = Forked, processes


def _run_trial(script: str, arguments: Sequence[str]) -> None:
    os.setsid()
    if Path(script).name == "ablations.py":
        _ablation(arguments)
    else:
        _script(Path(script).name, arguments)


def _features(inputs: Path, out: Path) -> None:
    import keras

    from keras_vit.data import sources
    from keras_vit.evaluate import extract, feature_store

    feature_store._SECONDS_BETWEEN_SAVES = -1
    model = keras.models.load_model(inputs / "model.keras")
    extract(
        model,
        sources.image_folder(inputs / "images" / "train"),
        output=out,
        batch_size=2,
        progress=False,
    )


def _checkpoint(name: str) -> Callable[[Path, Path], Any]:
    def save(inputs: Path, out: Path) -> None:
        import keras

        import keras_vit

        model = keras.models.load_model(inputs / "model.keras")
        out.mkdir(exist_ok=True)
        keras_vit.save_checkpoint(model, out / name)

    return save


def _download(inputs: Path, out: Path) -> None:
    from keras_vit.weights.download import fetch

    os.environ["KERAS_HOME"] = str(out)
    fetch((inputs / "url.txt").read_text(), progress=False)


def _export(format_: str) -> Callable[[Path, Path], Any]:
    def run(inputs: Path, out: Path) -> int:
        from keras_vit import cli

        options = ["--flavours=float32"] if format_ == "tflite" else []
        folder = out if format_ == "saved_model" else out.parent / "models"
        chosen = [
            f"--model={inputs / 'model.keras'}",
            f"--format={format_}",
            f"--output={folder}",
            "--num_images=4",
        ]
        return cli.main(["export", *chosen, *options])

    return run


COMMANDS: dict[str, Callable[[Path, Path], Any]] = {
    "pretrain": _recipe("pretrain.py"),
    "finetune": _python(_finetune),
    "masked_patches": _recipe("masked_patches.py", "masked"),
    "mae": _recipe("mae.py", "mae"),
    "sweep": _sweep,
    "ablations": _ablations,
    "ablation_run": _ablation_run,
    "features": _python(_features),
    "npz": _python(_checkpoint("model.npz")),
    "safetensors": _python(_checkpoint("model.safetensors")),
    "huggingface": _python(_checkpoint("model")),
    "download": _python(_download),
    **{format_: _export(format_) for format_ in ("tflite", "saved_model", "onnx", "openvino")},
}
EXPORTS = ("tflite", "saved_model", "onnx", "openvino")


if __name__ == "__main__":
    if sys.argv[1] == "inputs":
        write_inputs(Path(sys.argv[2]))
    else:
        _run_trial(sys.argv[2], sys.argv[3:])
