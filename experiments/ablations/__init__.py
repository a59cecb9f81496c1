"""Ablations of the paper. `../ablations.py` runs them.

arms.py     `Study`, `Arm` and `Claim`; the base config of all arms
studies.py  the eight studies, each in two sizes
runs.py     one run: trains an arm with one seed and measures it
report.py   tables, verdicts on claims, and plots of the runs
"""
