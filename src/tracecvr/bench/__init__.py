"""Benchmarks: a suite of cells, carried out by processes or on a cluster, with statistics and tables.

A *suite* (TOML, `suites/` or a file of yours) lists *rows*: a method with plugins and settings. A row with a seed is a
*cell*, an ordinary run. `tracecvr bench SUITE --data D --out DIR` writes:

```
DIR/bench.json        what this bench is: suite (whole), data, seeds, settings, rows; another one is refused
DIR/data/             the log, prepared once (absent if --source was prepared already)
DIR/warm/             warm-ups that cells share, by key; removed when all cells are done
DIR/cells/NAME/       one run each: result.json, intervals.parquet, scores.parquet, ...
DIR/failed.json       {cell: message} of cells that failed; absent if none did
DIR/results.parquet   one row per finished cell, in the suite's order, then by seed
DIR/reliability.parquet  cell, low, high, clicks, conversions, mean_prediction: 15 equal-width bins, empty ones left out
DIR/forecast.parquet  of the suite `forecast`: error, bias, coverage, width by cell, estimator, age and size
DIR/forecast_day.parquet  of the same: how the forecast of one day went on
DIR/table.md, table.tex  the same tables, to read and for a paper
DIR/report.html       all of it to look at, in one file; `tracecvr report DIR [--pdf] [--png] [--svg]` redraws it
DIR/figures/          with --pdf, --png or --svg: each figure of the report as a file
DIR/tuned.toml        of the suite `tune`: the best settings of each method, for --tuned; see `tuned`
```

`bench.json`: {"suite": {"name", "about", "layout", "metrics", ...}, "data", "data_options", "fingerprint", "source",
"seeds", "settings", "rows": [{"label", "method", "plugins", "settings", "role", "variant", "base"}], "tracecvr",
"judged": {"from", "until"} (null where rows differ), "log": {"origin", "notes", "counts"},
"tuned": settings by method, "tuning": what --tuned held}.

`results.parquet`, all columns always there:

| column | meaning |
|---|---|
| cell | its directory in `cells/` |
| label, variant | the row's name in tables, and of a search its trial |
| role | `lower` (Pretrain), `zero` (Vanilla), `upper` (Oracle, apart), `ours` (TRACE), `method` |
| base | label of the row that it is to be compared with; empty if none |
| method, plugins, settings, seed | what was run; plugins joined by `+`, settings as JSON |
| auc, pr_auc, ap, nll, ece, ece_gdfm, mce, pcoc, ne | pooled metrics; null where one class leaves one undefined |
| constant_..., logistic_... | the same of the `reference_models` on the same clicks |
| interval_auc, ..._pr_auc, ..._ap, ..._nll, ..._ece, ..._pcoc | weighted by clicks over intervals, as papers report |
| clicks, conversions | judged clicks (from `judge_from` on) and how many of them convert |
| events, steps, skipped_events, clipped_weights | counted over the stream |
| events_per_click, steps_per_click | the same by clicks of the stream, judged or not; a step is one batch |
| shown_per_click | events per click times `passes` |
| time_prepare_s, time_warm_up_s, time_shared_warm_up_s, time_stream_s | seconds; shared is what another cell spent |
| memory_peak_mb | of the worker process, when the cell ended |

`outcome.Outcome(DIR)` reads a bench back, with rows, differences and references, for whoever draws it;
`text_tables.Table` is what tables are made of.

Columns that start with `time_` or `memory_` depend on the machine. All others are the same bytes whatever the number of
workers, whichever the engine and however often the bench was killed.

Rooms: `suite` and `suite_rows` (TOML to cells), `runner` (the directory), `engines` (local processes, Ray),
`progress_board` (progress), `results` (cells to results.parquet), `outcome`, `stats`, `tables`, `tune`,
`tuned` (its file), `gauntlet` (a suite over many logs; with `regret`, `gauntlet_report`, `gauntlet_results`),
`paper` (its own figures), `report`, `command` (all of it).
"""
