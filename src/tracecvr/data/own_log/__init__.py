"""A log of your own: what its schema says, how its files and times are read, and what is done about its defects.

`datasets/logs.py` makes a dataset of it, `inspection` proposes the schema.
"""
