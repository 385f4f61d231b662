"""What is run, in which order, and where it stands: from the cells of a study to finished run directories.

    study_file, sweep, plan          the cells of a study: in its file, as all others get them, what they take, its jobs
    ledger, watch                    where every cell stands, and how the study gets on
    attempt, lease, turns, runner    how cells are run: attempts and the engine, by one holder, in turns, all
    job                              the program inside a job of Slurm
    pairs, tune, search              designs: `run A B`, a race of settings, hyper-parameters
    experiments, bench               designs of single verbs, and programs that ranks run (programs/)

docs/studies.md says what is in the folder of a study.
"""
