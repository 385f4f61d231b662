"""Where the time of a step goes: accounts of recorded steps, of ranks and of single runs.

breakdown.py     where the time of a step goes, what more workers add to it, and what each part of the way costs
accounting.py    the complete account of recorded steps: every part of every step, and what none of them covers
attribution.py   what the synchronisation of a step is made of; what communication costs, by leaving it out
rank_steps.py    step rows of several ranks side by side; which rank is slow, by how much, and in which lap
run_profiles.py  each run for itself: one row with all that is known of it, and its course over the timed window
inspection.py    one run in detail: whether its laps add up, who was late, and what paused
timeline.py      Horovod's timeline decomposed: where the time of a collective goes; recorded steps as such events
traces.py        traces of torch.profiler and records of NCCL Inspector, one file a rank: who is late, what is exposed
timers.py        what measuring costs, from blocks of steps that alternated
explanation.py   one page about a run or a study: where the time goes, who is slow, what would help
"""
