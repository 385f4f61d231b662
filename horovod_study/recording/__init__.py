"""Recorded runs: what surrounds a training loop, so that its run directory can be analysed.

session      ONE recorded run: ranks, sampler, claim, run.json, clock and rows, steady window, totals, failure
recorder     `horovod_study.recorder`: three lines around anybody's PyTorch loop
hooks        the laps of such a loop, seen from public hooks
automatic    the same for a script without a line of this package: `horovod-study record -- COMMAND`, which has every
             Python below the command load inject/sitecustomize.py
turns        a rank's wait between slices of steps, where cells of a study train one at a time
lightning    the same for Lightning's Trainer, imported as `horovod_study.lightning`

The worked example's trainer is recorded by the same session.
"""
