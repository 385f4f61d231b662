"""Where a study runs: from its cells to finished run directories.

    launch      a cell, a Python and two paths in; an argument list and an environment out
    ledger      which cells are done, running, failed, incomplete or missing, and the lock of a study
    process     one cell as a group of processes that can be waited for and stopped without leaving orphans
    reason      why a cell failed, in one line, from what it printed
    progress    the time that is left, and the display of a running study
    runner      runs what is missing, one cell after the other, and records what went wrong
    search_file, search    a hyper-parameter search: its YAML file, and the trials that Optuna proposes
    bench       the launches of `horovod-study bench`, and the one document they fill
    range_run   the training run of a learning-rate range test
    racing, tune, settings_file    a race of settings of how workers talk, and the file that train reads them from

A study called NAME lives in RUNS/NAME:

    <key>/             the run directory of the latest attempt at a cell (records.py knows its format)
    .attempts/         earlier attempts that failed or were interrupted: <key>-1, <key>-2, ...
    logs/<key>.log     what the latest attempt printed
    cells/<key>.yaml   what it was asked to do: `python -m horovod_study.train --config ... --out ...` repeats it
    attempts.csv       one line per attempt: when, how long, how it ended
    .lock              held by the command that runs the study
"""
