"""The public face: what `import tracecvr` gives, and what the commands call.

`logs` (a log to learn from), `replays` (one method on it), `comparisons` (several), `models` (what was learnt),
`authors` (classes of your own); `own_tables` (tables in memory and files), `shown` (what a notebook shows).
"""
