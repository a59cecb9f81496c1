"""Ablations of the paper. `../ablations.py` runs them.

arms.py     `Study`, `Arm` and `Claim`; the configs of an arm's runs
studies.py  the twelve studies, each in two sizes
rows.py     the results as two files: a row for each trial, and the plan
rates.py    the grid of learning rates of an arm, its widening, the winner
runs.py     one run: trains an arm with one seed or learning rate, or a start, and measures it
schedule.py the trials of a study and their order; the repetition of a sample
verdicts.py the rule of the verdicts: an interval over the seeds
report.py   tables, verdicts on claims, and plots of the rows
plan.py     a study with changed fields; its plan, without paths of the machine
inside.py   what is inside the trained models of an arm: attention, positions, filters
inside_page.py  its tables, verdicts and pictures
page.py     the page of all results, for `../results.py`
"""
