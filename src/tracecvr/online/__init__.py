"""The live learner: late events in, a better model out, nothing ever lost. An extra: `pip install tracecvr[online]`.

A *store* is a directory with everything that one live model is:

```
STORE/store.json        what it learns with and from: method, options, schema, intervals, allowed lateness, how events
                        tell the time
STORE/files.json        sizes and hashes of the files that never change
STORE/base/             the prepared log that it starts from: clicks before the split are its warm-up
STORE/start.safetensors the state in which a run ended, of a store that goes on from there instead
STORE/events.db         the event log (SQLite): an event is accepted once it is in here, on disk; also what was set
                        aside, what came of ticks, what was predicted, and the hashes of archived files
STORE/events.position   the last acknowledged position of the log
STORE/models/N.*        versions: state, and a manifest with log position, metrics and hashes, after N intervals
STORE/serving.json      which version serves, or which challenger; also in the log
STORE/challengers/NAME/ other models that learn from the same log, each with versions of its own
STORE/archive/*.parquet events that no horizon needs any more, for `prepare` and for replays
```

Ingesting and learning are separate processes that share only the store. Time is the events' own. Intervals follow each
other from the split on; one is closed, in the log, when the watermark, the newest time less the allowed lateness, has
passed its end. An event that comes later becomes known at the start of the first interval that is still open:
`seen = max(ts, closed_until)` is written beside the event, so that a replay of the log needs no clock. An event that is
dated further ahead than is believed (`Grid.limit`) is set aside: it joins nothing and closes nothing.
"""
