"""Ablations of the paper. `ablations.py`, beside this folder, runs them.

arms.py     what a study consists of: arms, each a config, and claims; the base that all arms have
in common studies.py  the eight studies, and their smallest form
runs.py     one run: trains an arm from one seed and measures it
report.py   tables, claims and pictures of the runs
"""
