"""The training loop: the only caller of `fit`.

Its callback writes checkpoints and logs, evaluates, and stops the run on request. A run calls `fit`
once, for the remaining steps. Its result does not depend on when it was stopped and resumed: the
data are a function of the step (`keras_vit.data.order`), and everything else is in the checkpoint.
"""

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import keras
import numpy as np
from absl import logging

from keras_vit.devices import Devices, is_of_a_lost_worker
from keras_vit.train.checkpoints import (
    Checkpoint,
    Checkpoints,
    find_not_finite,
    restore_state,
    state_of,
    state_sha256,
)
from keras_vit.train.learner import Learner, use_averaged_weights
from keras_vit.train.logs import MetricsLog
from keras_vit.train.progress import InputClock, ProgressBar, StallWatchdog, memory_in_use_gb
from keras_vit.train.window import Window
from keras_vit.writing import write_atomically

# The exit code of a run that was asked to stop and saved its state: EX_TEMPFAIL of sysexits.h, "try
# again later".
EXIT_STOPPED = 75

Evaluator = Callable[[keras.Model], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """When the loop logs, evaluates and saves, in steps (updates).

    0 disables `evaluate_every` and `checkpoint_every`; the other numbers must be at least 1.

    Attributes:
        total_steps: Length of the run.
        log_every: Interval of logging. Metrics are means over these steps.
        evaluate_every: Interval of validation, with averaged weights if the optimizer keeps
            averages. The run also validates at its end.
        checkpoint_every: Interval of checkpoints. The run also saves one at its end, and when it is
            asked to stop.
        keep_checkpoints: Number of newest checkpoints to keep. The best one by `best_metric` is
            kept too.
        best_metric: A metric of the validation, or of a further evaluation of `train`.
    """

    total_steps: int
    log_every: int = 50
    evaluate_every: int = 0
    checkpoint_every: int = 1000
    keep_checkpoints: int = 2
    best_metric: str = "validation/accuracy"

    def __post_init__(self) -> None:
        numbers = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "best_metric"
        }
        least = {"total_steps": 1, "log_every": 1, "keep_checkpoints": 1}
        wrong = [
            f"`{name}` = {value}" for name, value in numbers.items() if value < least.get(name, 0)
        ]
        if wrong:
            raise ValueError(
                f"Numbers of steps must not be negative, and {', '.join(least)} must be at least "
                f"1. Received: {', '.join(wrong)}."
            )


class Stopped(Exception):
    """The run was asked to stop, and its state is saved. Rerun the same command to resume."""


class Diverged(Exception):
    """A loss, gradient, weight or metric is NaN or infinite. No checkpoint was written with it."""


def train(
    learner: Learner,
    model: keras.Model,
    batches_from: Callable[[int, Callable[[], int]], Any],
    config: LoopConfig,
    workdir: str | os.PathLike,
    *,
    batch_size: int,
    devices: Devices,
    validation: Callable[[], Any] | None = None,
    evaluators: Mapping[str, Evaluator] | None = None,
    show_progress: bool = True,
) -> dict[str, float]:
    """Trains to the last step, starting from the newest checkpoint in `workdir` if there is one.

    Args:
        learner: From `make_learner`.
        model: The model that the learner was created from.
        batches_from: Function from the first step and a function `stamp` to tf.data batches; see
            `keras_vit.data.pipeline.training_batches`.
        config: Intervals and length of the run.
        workdir: Folder for checkpoints/, metrics.csv and tensorboard/.
        batch_size: Examples of a batch over all workers, to compute images per second.
        devices: From `connect`.
        validation: Function that returns the batches of the validation set; see
            `keras_vit.data.pipeline.evaluation_batches`.
        evaluators: Further evaluations by name, each a function from the model to {metric: value}.
            They run after each validation.
        show_progress: Whether to show a progress bar on standard error.

    Returns:
        The metrics of the last evaluation, and "state_sha256".

    Raises:
        Stopped: After SIGTERM or SIGINT, when the state is saved.
        Diverged: If the loss, the gradient, the state or a metric is not finite. The message names
            the step and the last good checkpoint.
        ValueError: If no image of the training set or of the validation set could be read.
        OSError: If the last checkpoint or the metrics cannot be written.
        ConnectionError: If another worker is no longer reachable.
    """
    checkpoints = Checkpoints(
        workdir,
        keep=config.keep_checkpoints,
        best_metric=config.best_metric,
        is_writer=devices.is_chief,
    )
    found = _resume(learner, model, checkpoints, devices)
    start = 0 if found is None else found.step
    has_metrics = found is None or bool(found.metrics)
    log = (
        MetricsLog(workdir, resume_step=start, keep_evaluation=has_metrics)
        if devices.is_chief
        else None
    )
    bar = ProgressBar(config.total_steps, start, shown=show_progress and devices.is_chief)
    if start:
        bar.say(f"Resuming from step {start} of {config.total_steps}: {checkpoints.path(start)}")
    run = _Run(
        learner=learner,
        model=model,
        config=config,
        checkpoints=checkpoints,
        log=log,
        bar=bar,
        batch_size=batch_size,
        devices=devices,
        validation=validation,
        evaluators=evaluators or {},
        start=start,
    )
    if found is not None:
        run.metrics, run.window = dict(found.metrics), Window(found.window)
    watchdog = (
        StallWatchdog(functools.partial(print, file=sys.stderr, flush=True))
        if devices.num_workers > 1
        else None
    )
    run.reset_watchdog = (lambda: None) if watchdog is None else watchdog.reset
    with _SignalHandlers(run.ask_to_stop):
        try:
            if start < config.total_steps:
                learner.fit(
                    devices.distribute(batches_from(start, run.clock.stamp)),
                    epochs=1,
                    steps_per_epoch=config.total_steps - start,
                    verbose=0,
                    shuffle=False,
                    callbacks=[run],
                )
            run.finish()
        except Exception as error:
            if devices.num_workers == 1 or not is_of_a_lost_worker(error):
                raise
            raise ConnectionError(
                f"Step {run.step}: another worker of this run is no longer reachable. End all "
                f"workers, and rerun the same command on each to resume. {run.kept()}"
            ) from error
        finally:
            bar.close()
            if watchdog is not None:
                watchdog.close()
            if log is not None:
                log.close()
    return {**run.metrics, "state_sha256": state_sha256(state_of(learner, model))}


def _resume(
    learner: Learner, model: keras.Model, checkpoints: Checkpoints, devices: Devices
) -> Checkpoint | None:
    """Restores the newest checkpoint and returns it without its arrays, to free their memory."""
    found = checkpoints.latest()
    steps = devices.gather(0 if found is None else found.step)
    if len(set(steps)) > 1:
        raise OSError(
            f"The workers find different checkpoints in {checkpoints.folder}: of steps "
            f"{', '.join(map(str, steps))}. All workers must share one folder."
        )
    if found is None:
        return None
    restore_state(learner, model, found.state)
    if devices.is_chief:
        checkpoints.set_aside(found.step)
    return replace(found, state={})


class _SignalHandlers:
    """Handles SIGTERM and SIGINT inside the context.

    The first signal calls `stop`. A second one has its previous effect.
    """

    def __init__(self, stop: Callable[[str], None]):
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._caught)

    def _caught(self, number: int, _: Any) -> None:
        signal.signal(number, self._before[number])
        self._stop(signal.Signals(number).name)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)


class _Run(keras.callbacks.Callback):
    """The work between two steps: logging, evaluation, checkpoints, stopping."""

    def __init__(
        self,
        *,
        learner,
        model,
        config,
        checkpoints,
        log,
        bar,
        batch_size,
        devices,
        validation,
        evaluators,
        start,
    ):
        super().__init__()
        self.learner, self.trained_model, self.config, self.checkpoints = (
            learner,
            model,
            config,
            checkpoints,
        )
        self.log, self.bar, self.batch_size, self.devices = log, bar, batch_size, devices
        # made once: tracing a data set takes longer than reading a small one
        self.validation = validation and functools.cache(validation)
        self.evaluators = evaluators
        self.step = self._start = start
        self.reset_watchdog: Callable[[], None] = lambda: None
        self.clock = InputClock()
        self.metrics: dict[str, float] = {}
        self.asked_by: str | None = None
        self._wish = checkpoints.folder.parent / "stop"
        self._last_step = checkpoints.folder.parent / "stop_after"
        self.window = Window()
        self._examples = 0.0  # trained on in this process
        self._measured_at = -1
        if devices.is_chief:
            self._wish.unlink(missing_ok=True)
            self._last_step.unlink(missing_ok=True)

    def ask_to_stop(self, signal_name: str) -> None:
        self.asked_by = signal_name
        if self.devices.num_workers == 1:  # several workers must end an evaluation together
            self.learner.stop_evaluating = True

    def on_train_begin(self, logs=None) -> None:
        every = self.config.evaluate_every
        if self._start and every and self._start % every == 0 and not self.metrics:
            self._evaluate()  # the run was stopped before it could
            if not self.asked_by:
                self._save(must=False)  # adds the metrics to the checkpoint
        self.clock.restart()

    def on_train_batch_begin(self, batch, logs=None) -> None:
        self.clock.begin()

    def on_train_batch_end(self, batch, logs=None) -> None:
        values = {name: float(np.ravel(value)[0]) for name, value in (logs or {}).items()}
        seconds = self.clock.end()
        self.step += 1
        self._check_finite(values)
        self.window.add(values, seconds=seconds)
        self._examples += values["examples"]
        self.bar.step()
        self.reset_watchdog()
        config, last = self.config, self.step == self.config.total_steps
        if self.step % config.log_every == 0 or last:
            self._write_window()
        if config.evaluate_every and self.step % config.evaluate_every == 0 and not last:
            self._evaluate()
        if self._is_stopping():
            self._stop()
        if config.checkpoint_every and self.step % config.checkpoint_every == 0 and not last:
            self._save(must=False)
        self.clock.restart()

    def finish(self) -> None:
        """Evaluates and saves at the end. Does nothing if the run had ended before."""
        if self.metrics and self.step == self._start:
            return
        self._check_learned()
        self._evaluate()
        if self.asked_by and self.devices.num_workers == 1:
            self._stop()  # the evaluation was interrupted
        self._save(must=True)

    def _stop(self) -> NoReturn:
        self._save(must=True)
        self.devices.gather(self.step)  # the other workers wait until the chief has written
        raise Stopped(
            f"Stopped by {self.asked_by} after step {self.step} of {self.config.total_steps}. The "
            f"state is saved in {self.checkpoints.path(self.step)}. Rerun the same command to "
            "resume."
        )

    def _is_stopping(self) -> bool:
        if self.devices.num_workers == 1:
            return self.asked_by is not None
        # A step needs all workers, so all must stop after the same step. A worker that is asked to
        # stop creates the file `stop`. The chief then writes a step that no worker has begun yet:
        # no worker is more than one step ahead of another.
        if self.asked_by:
            self._wish.touch()
        if self.devices.is_chief and self._wish.exists() and not self._last_step.exists():
            with write_atomically(self._last_step) as partial:
                partial.write_text(str(self.step + 2), encoding="utf-8")
        if not self._last_step.exists() or self.step < int(
            self._last_step.read_text(encoding="utf-8")
        ):
            return False
        self.asked_by = self.asked_by or "another worker"
        return True

    def _check_finite(self, values: Mapping[str, float]) -> None:
        """Raises `Diverged` if the loss or the gradient norm is not finite.

        In float16 an infinite norm is accepted while the loss scale is above 1: the step was
        skipped, and the next one has a smaller loss scale.
        """
        loss, norm = values["loss"], values["gradient_norm"]
        if not np.isfinite(loss) or (not np.isfinite(norm) and values["loss_scale"] <= 1.0):
            self._diverge(f"the loss is {loss}, the norm of the gradient {norm}")

    def _check_state(self) -> None:
        """Raises `Diverged` if a variable is not finite.

        All workers check, because if one raised alone, the others would wait for it.
        """
        if wrong := find_not_finite(self.learner, self.trained_model):
            names = ", ".join(wrong[:3])
            self._diverge(f"{len(wrong)} variables of the run contain NaN or infinity ({names})")

    def _check_learned(self) -> None:
        self._sync()
        self._check_state()
        if self._start == 0 and self._examples == 0:
            raise ValueError(
                f"No image of the {self.step} batches of this run could be read, so nothing was "
                "trained and no model is written. Check the files that are listed in "
                "unreadable_train.txt in the folder of the run."
            )
        if not keras.ops.convert_to_numpy(self.learner.optimizer.iterations):
            self._diverge("the gradient of every step overflowed, so no weight was ever updated")

    def _diverge(self, what: str) -> NoReturn:
        steps = self.checkpoints.steps()
        last_good = self.checkpoints.path(steps[-1]) if steps else "none yet"
        raise Diverged(
            f"Step {self.step}: {what}. Last good checkpoint: {last_good}. Try a lower learning "
            "rate, a longer warm-up or clipping. The same command would diverge again."
        )

    def _write_window(self) -> None:
        rates = self.learner.optimizer.learning_rates(self.step - 1)
        means = self.window.take_means()
        values = {
            **means.metrics,
            "train/learning_rate": max(rates.values()),
            "train/images_per_second": means.steps * self.batch_size / means.seconds,
            "train/input_bound": self.clock.fraction(),
            "train/memory_gb": memory_in_use_gb(),
        }
        self._write(values)
        if means.metrics:
            self.bar.show(values)

    def _write(self, values: Mapping[str, float]) -> None:
        if self.log is None:
            return
        try:
            self.log.write(self.step, values)
        except OSError as error:
            raise OSError(
                f"Step {self.step}: the metrics could not be written: {error}. {self.kept()} Make "
                "room, and rerun the same command."
            ) from error

    def kept(self) -> str:
        """Returns a sentence that names the checkpoint from which the run can be resumed."""
        steps = self.checkpoints.steps()
        return (
            f"The last checkpoint is kept: {self.checkpoints.path(steps[-1])}."
            if steps
            else "No checkpoint yet."
        )

    def _evaluate(self) -> None:
        self._sync()
        with use_averaged_weights(self.learner):
            if self.validation is not None:
                batches = self.validation()
                counted = self.learner.evaluate(
                    self.devices.distribute(batches),
                    steps=int(batches.cardinality()) // self.devices.local_parts,
                    verbose=0,
                    return_dict=True,
                )
                if self.asked_by and self.devices.num_workers == 1:
                    return  # the evaluation was interrupted: its metrics are incomplete
                self.metrics = {
                    f"validation/{name}": float(np.ravel(value)[0])
                    for name, value in counted.items()
                }
            for name, evaluator in self.evaluators.items():
                self.metrics |= {
                    f"{name}/{key}": float(value)
                    for key, value in evaluator(self.trained_model).items()
                }
        self._measured_at = self.step
        self._check_metrics()
        self._write(self.metrics)
        if self.metrics:
            figures = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
            self.bar.say(f"step {self.step}: {figures}")

    def _check_metrics(self) -> None:
        if self.metrics.get("validation/examples") == 0:
            raise ValueError(
                "No image of the validation set could be read, so there are no metrics. Check the "
                "files that are listed in unreadable_test.txt in the folder of the run."
            )
        if wrong := [
            f"{name} is {value}" for name, value in self.metrics.items() if not np.isfinite(value)
        ]:
            self._diverge(f"among the metrics, {', '.join(wrong[:3])}")

    def _save(self, *, must: bool) -> None:
        self._sync()
        self._check_state()
        if not self.devices.is_chief:
            return
        metrics = self.metrics if self._measured_at == self.step else {}
        try:
            self.checkpoints.save(
                self.step, state_of(self.learner, self.trained_model), metrics, self.window.rows()
            )
        except OSError as error:
            message = f"Step {self.step}: no checkpoint could be written in {self.checkpoints.folder}: {error}."
            if must:
                raise OSError(
                    f"{message} Older checkpoints are kept. Make room, and rerun the same command."
                ) from error
            logging.error(
                "%s Older checkpoints are kept. The next attempt is in %d steps.",
                message,
                self.config.checkpoint_every,
            )

    def _sync(self) -> None:
        """Copies the state back to the variables: on JAX, `fit` keeps it elsewhere while it runs."""
        if hasattr(self.learner, "jax_state_sync"):
            self.learner.jax_state_sync()
