"""Recorded runs: what surrounds a training loop, so that its run directory can be analysed.

session      ONE recorded run of our own trainer: ranks, sampler, claim, run.json, clock, steady window, totals, failure
command      `horovod-study record -- COMMAND`: a script without a line of this package, whose processes load `inject`
recorder     `horovod_study.recorder`: three lines around anybody's PyTorch loop
lightning    the same for Lightning's Trainer, imported as `horovod_study.recording.lightning`
rank         what is inside the ranks of both: hooks that note events
steps        steps and their laps, from events
said         the rate that a command's output says
"""
