"""What is run, in which order, and where it stands: from the cells of a study to finished run directories.

    study_file  the file of a study, and the cells that come of it with their placements
    sweep       these cells and what is asked of all of them: what everybody below the file is given
    plan        how long cells take, learned or guessed; what a study will do and take, before anything runs
    ledger      the state of every cell: done, running, queued, failed, missing, ...
    watch       a study that is being run, or one training, as it gets on, on a terminal or in a log

    attempt     one attempt at a cell or a program: started, waited for, ended, explained; Ctrl-C as a request to stop
    engine      runs what the lanes of a policy ask for, and tells them how it ended

    turns       cells that train one at a time, in slices and rounds, while the others wait; precision as their aim
    lease       who holds a run, a cell or a study, and how that ended
    runner      what a study still needs: found, tried with two workers, run; retries, cancels, and follows designs
    submit      cells given to Slurm, and jobs taken back
    job         the program inside a job: a grid that stops with a checkpoint when Slurm says so
    pairs       `run A B`: two configurations in blocks, side by side
    tune        a race of settings of how workers communicate
    search      a hyper-parameter search: its YAML file, and Optuna's study whose trials are cells
    attribute   arms of runtimes in rounds, with --measure-sync
    range_run   the training run of a learning-rate range test
    bench       programs that ranks run (programs/): the launches of `bench`, and the verdicts of `bench equality`

A study called NAME lives in RUNS/NAME:

    <key>/             the run directory of the latest attempt at a cell (records/ knows its format)
    .attempts/         earlier attempts that failed or were interrupted: <key>-1, <key>-2, ...
    logs/<key>.log     what the latest attempt printed
    cells/<key>.yaml   what it was asked to do: `python -m horovod_study.train --config ... --out ...` repeats it
    attempts.csv       one line per attempt: when, how long, how it ended
    .claims/           who holds a cell, and how its attempts ended: <key>.1, <key>.2, ...
    .requests/         who holds a claim of this name is asked to end: how a runner on any host is reached
    .smoke/            smoke tests, and which of them have passed
    .code/             the code that cells were run with: hashes of its files, and snapshots for jobs in a queue
    .environments/     what the identities in the keys of cells stand for
    .jobs/<name>/      one submitted job: its script, its cells, its own notes, and what it printed
    .ledger.json       what was read of finished cells
"""
