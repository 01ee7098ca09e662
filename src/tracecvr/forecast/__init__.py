"""How many conversions the clicks of a day will have in the end, by segment, with intervals.

`cells.py` counts clicks and conversions by segment, day and age; `estimators.py` forecasts from these counts and from
what the model predicted; `intervals.py` learns from past forecasts how far they were off.
"""
