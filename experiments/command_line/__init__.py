"""Command lines of the scripts: what several of them share, from the flags to the exit code.

native_logs.py      imported first by each script: TensorFlow's native log lines are held back
exit_codes.py       errors that users can resolve, as a line and an exit code
run_recipe.py       `--config`, `--workdir` and `--config.<field>=value`
frozen_features.py  `--model`, `--data` and others: features of a model, computed once and kept
trials.py           many command lines of one experiment, each a process: started, monitored,
    stopped and resumed
"""
