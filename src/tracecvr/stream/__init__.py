"""What was known when: the reveals of a click, and where they come from."""

WARM_LABELS = ("censored", "mature")
"""How clicks before the split are labelled. `censored`, the default of runs and of live models: as known at the split.
`mature`, the habit of papers: by their final labels, even where the conversion came after the split."""
