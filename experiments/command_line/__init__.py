"""Command-line code that several scripts share.

native_logs.py      suppresses TensorFlow's native log lines; each script imports it first
exit_codes.py       turns errors that users can resolve into one line and an exit code
run_recipe.py       the flags `--config`, `--workdir` and `--config.<field>=value`
frozen_features.py  the flags `--model`, `--data` and others; features, computed once and stored
trials.py           the processes of an experiment: started, monitored, stopped and resumed
"""
