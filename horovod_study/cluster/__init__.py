"""Where a study runs: from its cells to finished run directories.

    partitions  what a node is and how work gets there, from YAML files; yaml_keys checks what such files say
    study_file  the file of a study, and the cells that come of it with their placements
    estimate    how long cells take, learned or guessed
    allocations cells put into jobs, one per placement
    plan        what a study will do and take, before anything runs
    launch      a cell, a Python and two paths in; an argument list and an environment out
    identity    the code and the environment that tell cells apart beside their configuration
    lease       who holds a cell or a study, told by small files that also file servers understand
    ledger      where every cell stands: done, running, queued, failed, missing, ...
    watch       a study that is being run, as it gets on, on a terminal or in a log
    process     one cell as a group of processes that can be waited for and stopped without leaving orphans
    reason      why a cell failed, in one line, from what it printed
    progress    the display of a running study
    pinning     which cores a cell gets, and who else uses them
    attempt     one attempt at a cell or a program: started, waited for, ended, explained
    engine      runs what the lanes of a policy ask for; the policies are
                grid (run), compare, tune, search, attribute, range_run, smoke, ranks (programs that train nothing)
    interruption    Ctrl-C and SIGTERM as a wish to stop
    grid        the missing cells of a study, each under its claim
    runner      what a study still needs: found, said, run; retries and cancels
    smoke       two workers for a few steps, before a sweep
    slurm       the script of a job as pure text, and what gives jobs to sbatch and takes them back
    jobs        submitted jobs: what each was asked to run, and where it stands
    job         the program inside a job: runs its cells, and stops with a checkpoint when Slurm says so
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
    .claims/           who holds a cell, and how its attempts ended: <key>.1, <key>.2, ...
    .requests/         who holds a claim of this name is asked to end: how `cancel` reaches a runner on any host
    .smoke/            smoke tests, and which of them have passed
    .code/             the code that cells were run with: hashes of its files, and snapshots for jobs in a queue
    .environments/     what the identities in the keys of cells stand for
    .jobs/<name>/      one submitted job: its script, its cells, its own notes, and what it printed
    .ledger.json       what was read of finished cells
"""
