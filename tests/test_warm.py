"""The processes of `warm.py` behave as those of `subprocess`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm

pytestmark = pytest.mark.tensorflow


@pytest.fixture(params=[subprocess, warm], ids=["subprocess", "warm"])
def start(request: pytest.FixtureRequest):
    return request.param


def test_streams_arguments_folder_and_environment(start, tmp_path):
    script = tmp_path / "script.py"
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    script.write_text(
        "import beside, os, sys\nprint(beside.WORD, sys.argv, os.getcwd(), os.environ['HERE'], "
        "__name__)\n"
        "print('wrong', file=sys.stderr)\nsys.exit(3)"
    )
    environment = {**os.environ, "HERE": "here"}
    command = [sys.executable, str(script), "a", "b c"]
    done = start.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout == f"found {[str(script), 'a', 'b c']} {tmp_path} here __main__\n"
    assert (done.stderr, done.returncode) == ("wrong\n", 3)


def test_code_and_modules(start):
    code = start.run(
        [sys.executable, "-c", "import sys; print(sys.argv)", "x"], capture_output=True, text=True
    )
    assert (code.stdout, code.returncode) == ("['-c', 'x']\n", 0)
    module = start.run(
        [sys.executable, "-m", "keras_vit", "info", "ViT_B17"], capture_output=True, text=True
    )
    assert (
        module.returncode == 1 and "ViT_B16" in module.stderr and "Traceback" not in module.stderr
    )


def test_an_exception_is_told_with_its_traceback(start):
    done = start.run(
        [sys.executable, "-c", "raise OSError('gone')"], stderr=subprocess.PIPE, text=True
    )
    assert (
        done.returncode == 1
        and done.stderr.startswith("Traceback")
        and done.stderr.endswith("OSError: gone\n")
    )


def test_what_is_written_and_registered_before_the_end_is_not_lost(start):
    code = "import atexit; atexit.register(print, 'last'); print('first', end=' ')"
    assert start.run([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout == b"first last\n"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, -2)]
)
def test_signals_end_it(start, number, code):
    line = "import time; print('ready', flush=True); time.sleep(600)"
    # whoever starts the tests in the background of a shell has all below ignore it
    if number == signal.SIGINT:
        line = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {line}"
    process = start.Popen(
        [sys.executable, "-c", line], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout.readline() == "ready\n" and process.poll() is None
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == "" and process.returncode == code


def test_a_time_limit_ends_it(start):
    with pytest.raises(subprocess.TimeoutExpired):
        start.run(
            [sys.executable, "-c", "import time; time.sleep(600)"], capture_output=True, timeout=0.2
        )


EIGHT_AT_ONCE = """
import pathlib, random, sys, time
import numpy
folder, number = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / number).touch()
while len(list(folder.iterdir())) < 8:  # each waits for all others
    time.sleep(0.01)
print(random.random(), numpy.random.rand())
"""


def test_processes_run_beside_one_another_and_draw_their_own_numbers(tmp_path: Path):
    command = [sys.executable, "-c", EIGHT_AT_ONCE, str(tmp_path)]
    processes = [
        warm.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(8)
    ]
    try:
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert len({number for output in outputs for number in output.split()}) == 16


@pytest.mark.skipif(not warm.CAN_FORK, reason="processes are started by `subprocess` here")
def test_what_python_reads_when_it_starts_is_refused():
    with pytest.raises(ValueError, match="when it starts"):
        warm.run([sys.executable, "-c", ""], env={**os.environ, "PYTHONPATH": "/elsewhere"})
    with pytest.raises(ValueError, match="Not a command that the warm server can run"):
        warm.run([sys.executable, "-S", "script.py"])


@pytest.mark.skipif(not warm.CAN_FORK, reason="processes are started by `subprocess` here")
@pytest.mark.parametrize(("options", "forked"), [({}, True), ({warm.REAL_CHILDREN: "1"}, False)])
def test_what_a_process_starts_is_forked_too_unless_it_must_be_real(options, forked):
    code = """
import subprocess, sys
child = [sys.executable, "-c", "import sys; print('tensorflow' in sys.modules); sys.exit(3)"]
done = subprocess.run(child, stdin=subprocess.DEVNULL, capture_output=True, text=True)
print(done.returncode, done.stdout, end="")
"""
    line = [sys.executable, "-c", code]
    done = warm.run(line, env={**os.environ, **options}, capture_output=True, text=True)
    assert done.stdout == f"3 {forked}\n", done.stderr


def test_graphs_are_optimized_as_in_the_tests():
    tf = pytest.importorskip("tensorflow")
    code = "import tensorflow as tf; print(tf.config.optimizer.get_experimental_options())"
    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == str(tf.config.optimizer.get_experimental_options()), done.stderr
