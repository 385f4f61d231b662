"""What is run, in which order, and where it stands: from the cells of a study to finished run directories.

    study_file, plan                 the cells of a study: in its file; what they take, its jobs, and how it gets on
    ledger                           where every cell stands
    attempt, lease, turns, runner    how cells are run: attempts and the engine, by one holder, in turns, all
    job                              the program inside a job of Slurm
    designs, search                  designs: `run A B`, a race of settings, hyper-parameters
    bench                            designs of single verbs, and programs that ranks run (programs/)

docs/studies.md says what is in the folder of a study.
"""
