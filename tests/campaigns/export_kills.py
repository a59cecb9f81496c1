"""Exports that are killed at each of their file operations: no half version is seen, and nothing is left for good.

    python tests/campaigns/export_kills.py --seed=0 --count=200

An export of each format is traced once: every operation of Python on a file that changes something (open to write,
mkdir, rename, remove, chmod) and every start of a process. Then the same export is run again and killed, with SIGKILL,
just before the first operation, before the second, and so on, each once, or `--count` of all. It holds if the folder of
the versions then has nothing but whole versions (by their checksums) and hidden folders, and if whoever comes next
leaves nothing but whole versions, and no temporary folder. What TensorFlow writes by itself is between two operations.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

import keras_vit
from keras_vit import export
from keras_vit.export.checksums import damage, listed_models
from keras_vit.export.versions import new_version, temporary_folder, versions
from keras_vit.variants import VIT_VARIANTS

ROW = replace(VIT_VARIANTS["ViT_Ti16"], name="tiny", patch_size=8, width=16, depth=1, num_heads=2, mlp_dim=32)
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype(np.uint8)
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree", "subprocess.Popen")
FORMATS: dict[str, Callable] = {
    "tflite": lambda model, base: export.tflite(model, base, flavours=["float32"], images=IMAGES),
    "saved_model": lambda model, base: export.saved_model(model, base, images=IMAGES),
    "onnx": lambda model, base: export.onnx(model, base, images=IMAGES),
    "openvino": lambda model, base: export.openvino(model, base, images=IMAGES),
}


def changes_a_file(event: str, arguments: tuple, root: str) -> bool:
    """Whether an audit event is an operation that changes something below a folder, or starts a process."""
    if event == "open":
        path, mode, flags = arguments
        writes = any(letter in (mode or "") for letter in "wxa+") or (flags or 0) & (
            os.O_WRONLY | os.O_RDWR | os.O_CREAT
        )
        return bool(writes) and str(path).startswith(root)
    if event == "subprocess.Popen":
        return True
    return event in CHANGES and str(arguments[0]).startswith(root)


def run(format_: str, root: Path, kill_at: int | None) -> list[str]:
    """Exports in a process of its own, which is killed before an operation; returns the operations that there were."""
    log = root / "operations.txt"
    log.touch()
    process = os.fork()
    if process == 0:
        try:
            _export(format_, root, kill_at, log)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    expected = 0 if kill_at is None else -signal.SIGKILL
    if os.waitstatus_to_exitcode(status) != expected:
        raise RuntimeError(f"{format_} ended with {os.waitstatus_to_exitcode(status)}, not {expected}")
    return log.read_text().splitlines()


def _export(format_: str, root: Path, kill_at: int | None, log: Path) -> None:
    os.environ["TMPDIR"] = tempfile.tempdir = str(root / "tmp")
    model = keras_vit.application(ROW)(weights=None, input_shape=(16, 16, 3), classes=3)
    written, count = os.open(log, os.O_WRONLY | os.O_APPEND), 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal count
        if changes_a_file(event, arguments, str(root)):
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            os.write(written, f"{event} {arguments[0]}\n".replace(str(root), "").encode())

    sys.addaudithook(hook)
    FORMATS[format_](model, root / "models")


def problems_after(root: Path) -> list[str]:
    """What is not as it should be after a kill, and after the next one came."""
    base = root / "models"
    found = [f"a half version: {name}" for name in versions(base) if not is_whole(base / str(name))]
    found += [f"seen: {path.name}" for path in base.glob("*") if not path.name.isdigit() and path.name[0] != "."]
    before = tempfile.tempdir
    tempfile.tempdir = str(root / "tmp")
    try:
        with new_version(base) as version, temporary_folder("keras_vit_run_"):
            (version.folder / "file").touch()
    finally:
        tempfile.tempdir = before
    shutil.rmtree(version.path)
    found += [f"left: {path.name}" for path in base.iterdir() if not path.name.isdigit()]
    return found + [f"left in the temporary folder: {path.name}" for path in (root / "tmp").glob("keras_vit_*")]


def is_whole(version: Path) -> bool:
    """Whether all files of a version are as they were written."""
    models = listed_models(version) or [version]
    return not any(damage(model) for model in models)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--formats", default=",".join(FORMATS))
    options = parser.parse_args()
    falls, moments = [], []
    with tempfile.TemporaryDirectory(prefix="kills_") as folder:
        for format_ in options.formats.split(","):
            root = _fresh(Path(folder))
            operations = run(format_, root, None)
            if not is_whole(root / "models" / "1"):
                falls.append(f"{format_}: not whole without a kill")
            moments += [(format_, number, operation) for number, operation in enumerate(operations)]
        order = np.random.default_rng(options.seed).permutation(len(moments))
        tried = [moments[place] for place in np.sort(order[: options.count])]
        for format_, number, operation in tried:
            root = _fresh(Path(folder))
            run(format_, root, number)
            falls += [f"{format_} before {number}, {operation}: {problem}" for problem in problems_after(root)]
    print(*falls, sep="\n", end="\n" if falls else "")
    fell = len({fall.rpartition(": ")[0] for fall in falls})
    print(f"{len(moments)} operations: {', '.join(f'{n} of {f}' for f, n in _counts(moments).items())}")
    print(f"tried {len(tried)}, held {len(tried) - fell}, fell {fell}")
    return 1 if falls else 0


def _fresh(folder: Path) -> Path:
    root = Path(tempfile.mkdtemp(dir=folder))
    (root / "tmp").mkdir()
    return root


def _counts(moments: list[tuple[str, int, str]]) -> dict[str, int]:
    return {format_: sum(moment[0] == format_ for moment in moments) for format_, _, _ in moments}


if __name__ == "__main__":
    sys.exit(main())
