"""Runs of an experiment as processes: what their folders say, how they end, and how many go at a
time.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

pytest.importorskip("tensorflow")

# where a script finds what lies beside it
sys.path.append(str(Path(__file__).parents[1] / "experiments"))

from command_line import exit_codes, trials  # noqa: E402
from command_line.trials import Pool, Running, Trial  # noqa: E402

from keras_vit.train import Diverged, Stopped  # noqa: E402
from keras_vit.writing import _MARK  # noqa: E402

pytestmark = pytest.mark.tensorflow

FINISHES = """
import json, os, sys
json.dump({"validation/accuracy": 0.75, "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
           "session": os.getsid(0) == os.getpid(), "grows": os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH"),
           "saved": os.path.exists(sys.argv[1] + ".saved")}, open(sys.argv[1], "w"))
"""
WAITS_FOR_TWO = """
import glob, os, sys, time
folder = os.path.dirname(sys.argv[1])
open(folder + "/began", "w").close()
while len(glob.glob(folder + "/../*/began")) < 2:
    time.sleep(0.01)
"""
DIVERGES = "import sys; print('WARNING: x', file=sys.stderr); sys.exit('Diverged: Step 3: the loss is nan.')"
IS_STOPPED = "import sys; print('Stopped by SIGTERM after step 3.'); sys.exit(75)"
FAILS = "raise ValueError('no such data\\nor others')"
IS_KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
WAITS = """
import signal, sys, time
def stop(*_):
    time.sleep(0.2)
    open(sys.argv[1] + ".saved", "w").close()
    print("Stopped by SIGTERM after step 7.", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at often; a run seems to take ten seconds longer than it does."""
    monkeypatch.setattr(trials, "POLL_SECONDS", 0.01)
    clock = SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() + 10)
    monkeypatch.setattr(trials, "time", clock)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Trial]:
    def make(name: str, code: str = FINISHES) -> Trial:
        folder = tmp_path / "trials" / name
        return Trial(
            name=name,
            folder=folder,
            command=("-S", "-c", code, str(folder / "results.json")),
            tries={"rate": 0.1},
        )

    return make


def run(tmp_path: Path, *some: Trial, parallel: int = 1) -> Pool:
    pool = Pool(parallel, tmp_path, "sweep")
    pool.run(some, tmp_path / "trials")
    return pool


def test_what_has_finished_is_left_alone(make, tmp_path, capsys):
    trial = make("one")
    assert not trial.is_over() and trial.accuracy() is None
    ended: list[tuple[Trial, bool]] = []
    pool = Pool(
        1, tmp_path, "sweep", lambda trial: ended.append((trial, "seconds" in trial.notes()))
    )
    pool.run([trial], tmp_path / "trials")
    assert ended == [(trial, True)]
    said = capsys.readouterr().out
    assert "1 of 1 runs to do" in said and "one is finished: validation/accuracy 0.7500" in said
    assert trial.is_over() and trial.accuracy() == 0.75
    row = trial.row()
    assert (
        row["rate"] == 0.1
        and row["accuracy"] == 0.75
        and row["diverged"] is None
        and 10 <= row["seconds"] < 3600
    )
    assert row["command"].startswith("python -S -c ")
    written = (trial.folder / "results.json").stat().st_mtime_ns
    run(tmp_path, trial)
    assert "0 of 1 runs to do" in capsys.readouterr().out
    assert (trial.folder / "results.json").stat().st_mtime_ns == written


def test_a_half_written_note_of_a_finished_run_is_removed(make, tmp_path):
    """The experiment was killed while it noted the run, which went on and finished."""
    trial = make("one")
    run(tmp_path, trial)
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    left = trial.folder / f"{_MARK}{ended.pid}.2-trial.json"
    left.touch()
    run(tmp_path, trial)
    assert not left.exists()


def test_a_result_without_the_number_is_none(make):
    trial = make("one")
    trial.folder.mkdir(parents=True)
    for text in ("", '{"validation/acc', '{"validation/loss": 1.0}'):
        (trial.folder / "results.json").write_text(text)
        assert trial.results() == {} and trial.accuracy() is None and not trial.is_over()


def test_a_run_that_diverges_is_over_and_costs_nobody_else(make, tmp_path, capsys):
    lost, other = make("lost", DIVERGES), make("other")
    run(tmp_path, lost, other)
    assert (
        lost.notes()["diverged"] == "Step 3: the loss is nan."
        and lost.is_over()
        and lost.accuracy() is None
    )
    assert other.accuracy() == 0.75
    assert "lost diverged: Step 3: the loss is nan." in capsys.readouterr().out


def test_a_run_that_fails_ends_all_and_is_told_with_its_error(make, tmp_path):
    failing, never = make("failing", FAILS), make("never")
    with pytest.raises(
        ChildProcessError,
        match="failing failed with exit code 1: ValueError: no such data\nor others See .*log.txt",
    ):
        run(tmp_path, failing, never)
    assert not never.folder.exists() and not failing.is_over()
    with pytest.raises(
        ChildProcessError,
        match="killed failed with exit code -9: .* killed because memory ran out.* smaller --parallel",
    ):
        run(tmp_path, make("killed", IS_KILLED))


def test_the_others_are_asked_to_save_when_one_fails(make, tmp_path, monkeypatch):
    monkeypatch.setattr(Pool, "_has_room", lambda pool: len(pool.running) < 2)
    monkeypatch.setattr(Pool, "_start", _when_ready(Pool._start))
    patient = make("patient", WAITS)
    with pytest.raises(ChildProcessError, match="failing"):
        run(tmp_path, patient, make("failing", FAILS), parallel=2)
    assert "Stopped by SIGTERM after step 7." in (patient.folder / "log.txt").read_text()
    assert not psutil.pid_exists(patient.notes()["process"][0])


def _when_ready(start: Callable) -> Callable:
    """Starts a trial and returns when it has said something, or has ended."""

    def started(pool: Pool, trial: Trial) -> None:
        start(pool, trial)
        log = trial.folder / "log.txt"
        while not log.stat().st_size and pool.running[-1].process.poll() is None:
            time.sleep(0.01)

    return started


def test_a_signal_is_passed_on_and_the_rest_does_not_begin(make, tmp_path, monkeypatch):
    monkeypatch.setattr(Pool, "_start", _when_ready(Pool._start))
    pool, patient, never = Pool(1, tmp_path, "sweep"), make("patient", WAITS), make("never")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    observe = pool._observe
    monkeypatch.setattr(
        pool, "_observe", lambda: (pool.asked_by or os.kill(os.getpid(), signal.SIGINT), observe())
    )
    try:
        pool.catch_signals()
        with pytest.raises(Stopped, match="Stopped by SIGINT: rerun the same command to resume"):
            pool.run([patient, never], tmp_path)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "after step 7" in (patient.folder / "log.txt").read_text() and not never.folder.exists()
    assert not patient.is_over()


def test_a_run_that_was_stopped_by_others_stops_all(make, tmp_path):
    with pytest.raises(Stopped, match="Stopped by a signal to one"):
        run(tmp_path, make("one", IS_STOPPED), make("two"))
    assert not make("two").folder.exists()


def test_seconds_add_up_over_the_parts_of_a_run_and_memory_is_the_most(make, tmp_path):
    trial = make("one")
    trial.folder.mkdir(parents=True)
    trials.write_json(
        trial.folder / "trial.json", {"seconds": 100.0, "cpu_seconds": 7.0, "memory_gb": 50.0}
    )
    run(tmp_path, trial)
    assert 110 <= trial.notes()["seconds"] < 3600 and trial.notes()["memory_gb"] == 50.0
    before = trial.notes()["cpu_seconds"]
    ended = Running(
        trial=trial, process=SimpleNamespace(returncode=0), slot=0, log_start=0, cpu=2.5
    )
    Pool(1, tmp_path, "sweep")._settle(ended)
    assert before >= 7.0 and trial.notes()["cpu_seconds"] == before + 2.5


def test_processor_time_is_that_of_the_run(make):
    burn = "import time\nwhile time.process_time() < 0.5: pass\nprint('burnt', flush=True)\ninput()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with psutil.Popen([sys.executable, "-S", "-c", burn], **pipes) as process:
        running = Running(trial=make("one"), process=process, slot=0, log_start=0)
        assert process.stdout.readline() == b"burnt\n"
        running.observe()
        process.kill()
    assert 0.4 <= running.cpu < 5  # in ticks of 10 ms


def test_each_of_several_runs_gets_a_gpu(make, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(Pool, "_has_room", lambda pool: len(pool.running) < 2)
    some = [make(name, WAITS_FOR_TWO + FINISHES) for name in ("one", "two")]
    run(tmp_path, *some, parallel=2)
    assert sorted(trial.results()["cuda"] for trial in some) == ["3", "5"]
    assert [trial.results()["grows"] for trial in some] == ["true", "true"]
    alone = make("alone")
    run(tmp_path, alone)
    assert alone.results()["cuda"] == "3,5" and alone.results()["grows"] is None


def test_ctrl_c_in_a_terminal_reaches_a_run_through_the_pool_alone(make, tmp_path):
    """A terminal signals all processes of its session; a second signal would end a run unsaved."""
    trial = make("one")
    run(tmp_path, trial)
    assert trial.results()["session"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Stopped("Stopped by SIGTERM after step 7."), 75),
        (Diverged("Step 3: the loss is nan."), 1),
        (ValueError("There is no model."), 1),
        (OSError("The disk is full."), 1),
        (ImportError("pip install keras-vit[data]"), 1),
    ],
)
def test_a_script_ends_with_a_line_and_the_exit_code_of_its_error(
    error: Exception, code: int, monkeypatch, capsys
):
    monkeypatch.setattr(exit_codes.logging, "set_verbosity", lambda _: None)
    with pytest.raises(SystemExit) as ended, exit_codes.exit_on_error():
        raise error
    assert ended.value.code == code
    assert capsys.readouterr().err.endswith(f"{error}\n")
    with pytest.raises(KeyError), exit_codes.exit_on_error():  # a fault of the program
        raise KeyError("x")


def running(memory: int = 0, slot: int = 0) -> Running:
    return Running(trial=None, process=None, slot=slot, log_start=0, memory=memory)


@pytest.mark.parametrize(
    ("largest", "memories", "parallel", "available", "has_room"),
    [
        (0, [], 2, 0, True),  # the very first, whatever there is
        (0, [10], 2, 10**6, False),  # until it trains, nobody knows how much one takes
        (100, [100], 2, 121, True),
        (100, [100], 2, 120, False),  # a fifth more than the largest is wanted
        (100, [40], 2, 180, False),  # and what the one that runs will still grow by: 60
        (100, [40], 2, 181, True),
        (100, [130], 2, 121, True),
        (100, [130], 2, 119, False),  # one that is larger already gives nothing back
        (100, [100, 100], 2, 10**6, False),
        (100, [100, 100], 3, 10**6, True),
    ],
)
def test_as_many_run_as_fit_into_memory(
    tmp_path, monkeypatch, largest, memories, parallel, available, has_room
):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    pool = Pool(parallel, tmp_path, "sweep")
    pool.largest, pool.running = largest, [running(memory) for memory in memories]
    assert pool._has_room() == has_room


def test_the_largest_is_known_from_earlier_parts(make, tmp_path):
    for name, memory in (("one", 2.5), ("two", 1.5)):
        (tmp_path / "trials" / name).mkdir(parents=True)
        trials.write_json(tmp_path / "trials" / name / "trial.json", {"memory_gb": memory})
    assert Pool(2, tmp_path, "sweep").largest == 2.5e9


def test_a_run_trains_when_its_record_grows(make):
    trial = make("one")
    trial.folder.mkdir(parents=True)
    watched = Running(trial=trial, process=psutil.Process(), slot=0, log_start=0)
    watched.observe()
    assert watched.memory > 10**7 and not watched.has_trained
    metrics = trial.folder / "metrics.csv"
    for text, trains in (
        ("step,metric,value\n", False),
        ("step,metric,value\n", False),
        ("step,metric,value\n1", True),
    ):
        metrics.write_text(text)
        watched.observe()
        assert watched.has_trained == trains


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (b"", "no output."),
        (b"one\n\ntwo\n\n", "two"),
        (b"keras.Error: a\nValueError: b\nwith more\n", "ValueError: b\nwith more"),
        (b"ValueError: b\ndone\nDiverged: Step 2\n", "Diverged: Step 2"),
        (b"a\xff\n", "a\ufffd"),
    ],
)
def test_how_a_run_ended_is_read_from_its_own_lines(make, log: bytes, words: str):
    trial = make("one")
    trial.folder.mkdir(parents=True)
    earlier = b"ValueError: of the part before\n"
    (trial.folder / "log.txt").write_bytes(earlier + log)
    assert Running(trial=trial, process=None, slot=0, log_start=len(earlier)).outcome() == words


def test_a_run_of_a_killed_experiment_is_waited_for(make, tmp_path, capsys):
    trial = make("one")
    trial.folder.mkdir(parents=True)
    left = subprocess.Popen(
        [sys.executable, "-S", "-c", WAITS, *trial.command[3:]], stdout=subprocess.PIPE
    )
    assert left.stdout.readline() == b"ready\n"
    trials.write_json(
        trial.folder / "trial.json", {"process": [left.pid, psutil.Process(left.pid).create_time()]}
    )
    run(tmp_path, trial)
    left.returncode = 75  # psutil has waited for it
    with left.stdout as output:
        assert b"after step 7" in output.read()
    assert (
        "one still runs, though the sweep was killed. Waiting until it has saved"
        in capsys.readouterr().out
    )
    assert trial.accuracy() == 0.75 and trial.results()["saved"]  # before it began
    # the part of the process that was waited for is not measured, so the sum is not known
    assert (
        trial.notes()["seconds"] is trial.notes()["cpu_seconds"] is trial.row()["seconds"] is None
    )


def test_the_process_of_a_run_is_found_by_its_command_if_it_was_not_noted(
    make, monkeypatch, tmp_path
):
    trial = make("left", code=WAITS)
    trial.folder.mkdir(parents=True)
    with subprocess.Popen([sys.executable, *trial.command], stdout=subprocess.PIPE) as left:
        left.stdout.readline()  # it is ready
        assert trials._find_unrecorded(trial).pid == left.pid
        finished = make("left", code=FINISHES)
        process = trials._find_unrecorded(finished)
        # in another folder, a relative path in the command names another run
        monkeypatch.chdir(tmp_path)
        elsewhere = trials._find_unrecorded(trial)
        left.terminate()
        assert left.wait() == 75
    assert process is elsewhere is None and trials._find_unrecorded(trial) is None


def test_each_signal_is_passed_on_once(make, tmp_path):
    asked = []
    process = SimpleNamespace(poll=lambda: None, terminate=lambda: asked.append(1))
    pool, one = Pool(1, tmp_path, "sweep"), running()
    one.process, one.observe = process, lambda: None
    pool.running = [one]
    for signals, expected in ((0, 0), (0, 0), (1, 1), (1, 1), (2, 2), (2, 2)):
        pool.asked_by = ["SIGTERM"] * signals
        pool._observe()
        assert len(asked) == expected  # the second of a run's own ends it without saving


def test_another_process_with_the_number_of_an_ended_one_is_left_alone():
    mine = psutil.Process()
    assert trials._alive([mine.pid, mine.create_time()]).pid == mine.pid
    assert (
        trials._alive([mine.pid, mine.create_time() - 60]) is None and trials._alive(None) is None
    )


def test_of_two_experiments_that_begin_at_once_one_has_the_folder(tmp_path, monkeypatch):
    plan, check = {"seeds": 1}, trials.check_plan

    def meets_another(path: Path, *arguments, **options) -> dict:
        found = check(path, *arguments, **options)
        with pytest.raises(ValueError, match="Another run is using"):
            trials.claim(path, {"seeds": 2})  # between the check and the writing
        return found

    monkeypatch.setattr(trials, "check_plan", meets_another)
    trials.claim(tmp_path / "sweep.json", plan)
    assert trials.read_json(tmp_path / "sweep.json")["plan"] == plan


def test_a_json_file_appears_whole(tmp_path):
    trials.write_json(tmp_path / "a.json", {"a": [1, None]})
    assert (
        json.loads((tmp_path / "a.json").read_text())
        == {"a": [1, None]}
        == trials.read_json(tmp_path / "a.json")
    )
    assert trials.read_json(tmp_path / "absent.json") == {}
    (tmp_path / "list.json").write_text("[]")
    assert trials.read_json(tmp_path / "list.json") == {}
    assert dict(trials.flat({"a": {"b": 1, "c": {}}, "d": 2})) == {"a.b": 1, "a.c": {}, "d": 2}


@pytest.mark.parametrize("text", ['{"plan": {"a": 1', "[]", ""])
def test_a_damaged_plan_is_not_taken_for_none(text, tmp_path):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(ValueError, match="sweep.json is damaged, so nothing tells which sweep"):
        trials.claim(tmp_path / "sweep.json", {"a": 1})
    assert (tmp_path / "sweep.json").read_text() == text


@pytest.mark.parametrize("code", [-signal.SIGTERM, -signal.SIGINT])
def test_a_run_that_ends_by_a_signal_to_all_was_stopped(make, tmp_path, code):
    """A scheduler signals every process of a job; a run that does not train yet just ends."""
    trial = make("one")
    trial.folder.mkdir(parents=True)
    (trial.folder / "log.txt").write_text("")
    ended = Running(
        trial=trial, process=SimpleNamespace(returncode=code), slot=0, log_start=0, cpu=0.0
    )
    pool = Pool(1, tmp_path, "sweep")
    pool.asked_by = ["SIGTERM"]
    pool._settle(ended)
    assert not pool.failures and pool.asked_by == ["SIGTERM"]
    alone = Pool(1, tmp_path, "sweep")
    alone._settle(ended)
    assert alone.failures


def test_the_pool_leaves_the_gpus_to_its_runs(monkeypatch):
    hidden = []
    monkeypatch.setattr(
        trials.tf.config,
        "set_visible_devices",
        lambda devices, kind: hidden.append((devices, kind)),
    )
    trials.leave_accelerators()
    assert hidden == [([], "GPU")]

    def refuse(*_):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(trials.tf.config, "set_visible_devices", refuse)
    trials.leave_accelerators()
