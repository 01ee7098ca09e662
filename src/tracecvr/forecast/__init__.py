"""How many conversions the clicks of a day will have in the end, by segment, with intervals."""
