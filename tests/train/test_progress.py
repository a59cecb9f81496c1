"""The clock of the input, with a time that the test sets."""

import queue

import pytest
from warm import HUNG_SECONDS

pytest.importorskip("tensorflow")

from keras_vit.train import progress  # noqa: E402

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def now(monkeypatch):
    time = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: time[0])
    return time


def step(clock: progress.InputClock, now: list[float], ready: float, end: float) -> None:
    clock.begin()
    begun, now[0] = now[0], ready
    clock.stamp()
    now[0] = max(end, begun)
    clock.end()


def test_what_is_ready_before_it_is_asked_for_is_not_waited_for(now):
    clock = progress.InputClock()
    for _ in range(3):
        clock.stamp()
    for second in (1, 2, 3):
        clock.begin()
        now[0] = second
        clock.end()
    assert clock.fraction() == 0


def test_only_the_wait_for_a_batch_counts(now):
    clock = progress.InputClock()
    step(clock, now, ready=0.25, end=1.0)  # asked for at 0, ready at 0.25
    step(clock, now, ready=1.5, end=2.0)
    assert clock.fraction() == pytest.approx(0.75 / 2)
    step(clock, now, ready=2.0, end=3.0)  # a new window
    assert clock.fraction() == 0


def test_the_wait_for_a_batch_that_is_fetched_before_its_step_begins_counts(now):
    """As on JAX, where Keras fetches the batch first."""
    clock = progress.InputClock()
    now[0] = 0.75
    step(clock, now, ready=0.75, end=1.0)
    assert clock.fraction() == pytest.approx(0.75)


def test_what_lies_between_two_steps_is_left_out_on_request(now):
    clock = progress.InputClock()
    step(clock, now, ready=0.0, end=1.0)
    now[0] = 50.0  # an evaluation
    clock.restart()
    step(clock, now, ready=50.0, end=51.0)
    assert clock.fraction() == 0


def test_silence_is_said_once_until_something_is_heard():
    said = queue.Queue()
    watchdog = progress.StallWatchdog(said.put, seconds=0.05)
    try:
        assert "No step has ended for 0 s. If another worker of this run has died" in said.get(
            timeout=HUNG_SECONDS
        )
        with pytest.raises(queue.Empty):
            said.get(timeout=0.3)  # six silences long
        watchdog.reset()
        assert "No step has ended" in said.get(timeout=HUNG_SECONDS)
    finally:
        watchdog.close()
    assert said.empty()


def test_an_alarm_that_hears_is_silent():
    said = []
    watchdog = progress.StallWatchdog(said.append, seconds=HUNG_SECONDS)
    watchdog.reset()
    watchdog.close()
    assert not said


def test_memory_is_that_of_the_process():
    assert 0.05 < progress.memory_in_use_gb() < 100


def test_a_hidden_bar_says_nothing_but_what_it_is_told(capsys):
    bar = progress.ProgressBar(10, 0, shown=False)
    bar.step()
    figures = ("loss", "accuracy", "images_per_second", "input_bound", "memory_gb")
    bar.show({f"train/{name}": 0.5 for name in figures})
    bar.say("a line")
    bar.close()
    assert capsys.readouterr().err == "a line\n"


def test_a_bar_shows_speed_input_and_memory(capsys):
    bar = progress.ProgressBar(2, 1)
    bar.show(
        {
            "train/loss": 2.5,
            "train/accuracy": 0.25,
            "train/images_per_second": 99.6,
            "train/input_bound": 0.07,
            "train/memory_gb": 1.23,
        }
    )
    bar.step()
    bar.close()
    shown = capsys.readouterr().err
    assert (
        "loss=2.5" in shown
        and "images/s=100" in shown
        and "input-bound=7%" in shown
        and "memory=1.2 GB" in shown
    )
    assert "2/2" in shown
