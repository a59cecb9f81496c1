"""Published weights: which files exist, how they are fetched and read, and how their arrays become
a model's.
"""
