"""The folder of a run: its config, and checks before a run resumes in it.

A run stores its config in the folder, and refuses a folder that contains a run with another config.
"""

import hashlib
import json
import platform
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras
from absl import logging

from keras_vit.data.sources import Source
from keras_vit.devices import Devices
from keras_vit.train.config import flatten_config
from keras_vit.weights.secrets import without_secrets
from keras_vit.writing import write_atomically


def check_folder(workdir: Path, config: Any, data: Sequence[Source | None] = ()) -> bool:
    """Creates the folder of a run, and returns whether it already contains the same run.

    Args:
        workdir: Folder of the run.
        config: The whole config.
        data: Training and validation source. If empty, the data are not checked.

    Raises:
        ValueError: If the folder contains a run with another config, or the data have changed since
            that run was started.
        OSError: If the folder cannot be written.
    """
    path = workdir / "config.json"
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=workdir).close()
        if not path.exists():
            return False
        theirs = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(theirs, dict) or not {"config", "versions"} <= theirs.keys():
            raise ValueError("it has other fields")
    except OSError as error:
        raise OSError(
            f"Cannot write to {workdir}: {error.strerror}. Choose another folder for the run."
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{path} is not the config of a run: {error}. Choose another folder for the run."
        ) from error
    ours = describe_config(config)
    there = {name: without_secrets(str(value)) for name, value in theirs["config"].items()}
    # A run may be resumed on other devices, but not with other computations.
    where = ("devices.kind", "devices.names", "devices.jit_compile")
    different = [
        name
        for name in sorted({*ours, *there})
        if ours.get(name) != there.get(name) and not name.endswith(where)
    ]
    if different:
        lines = [
            f"  {name}: there {theirs['config'].get(name)}, here {ours.get(name)}"
            for name in different[:12]
        ]
        raise ValueError(
            f"{workdir} contains a run with another config:\n"
            + "\n".join(lines)
            + "\nChoose another folder for the run."
        )
    if data and theirs.get("data_sha256") != data_sha256(data):
        names = " and ".join(part.name for part in data if part is not None)
        raise ValueError(
            f"The data have changed since the run in {workdir} was started: {names}. Images were "
            "added, removed or replaced, or copied without their modification times. Restore them, "
            "or choose another folder for the run."
        )
    return True


def data_sha256(data: Sequence[Source | None]) -> str:
    """Returns the SHA-256 of the training and validation examples of a run."""
    parts = ["none" if part is None else part.sha256() for part in data]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def claim(workdir: Path, config: Any, data: Sequence[Source | None], devices: Devices) -> None:
    """Checks the folder of a run, and writes the config into it if it is new."""
    path, ours = workdir / "config.json", versions()
    # Only the chief checks the data: other workers may read copies with other modification times.
    if check_folder(workdir, config, data if devices.is_chief else ()):
        theirs = json.loads(path.read_text(encoding="utf-8"))["versions"]
        changed = {name: version for name, version in ours.items() if theirs.get(name) != version}
        if changed:
            logging.warning(
                "This run was started with other versions, so its results may differ slightly. "
                "Versions now: %s.",
                changed,
            )
    elif devices.is_chief:
        with write_atomically(path) as partial:
            record = {
                "config": describe_config(config),
                "versions": ours,
                "data_sha256": data_sha256(data),
            }
            partial.write_text(json.dumps(record, indent=1), encoding="utf-8")


def describe_config(config: Any) -> dict[str, str]:
    """Returns the fields of a config as they are recorded, without passwords."""
    facts = {"recipe": type(config).__name__, **flatten_config(config)}
    return {name: without_secrets(value) for name, value in facts.items()}


def versions() -> dict[str, str]:
    """Returns the versions of the software that affects the results."""
    return {
        "Python": platform.python_version(),
        "Keras": keras.__version__,
        "TensorFlow": version("tensorflow"),
        "backend": keras.backend.backend(),
        **({"JAX": version("jax")} if keras.backend.backend() == "jax" else {}),
    }
