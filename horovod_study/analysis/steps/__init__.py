"""Where the time of a step goes: accounts of recorded steps, of ranks and of single runs.

breakdown.py     where the time of a step goes, what more workers add to it, and what each part of the way costs
accounting.py    the complete account of recorded steps, and each run for itself: one row, and its course over time
attribution.py   what the synchronisation of a step is made of; what communication costs, by leaving it out
rank_steps.py    step rows of several ranks side by side; which rank is slow, by how much, and in which lap
timeline.py      Horovod's timeline decomposed: where the time of a collective goes; recorded steps as such events
traces.py        traces of torch.profiler and records of NCCL Inspector, one file a rank: who is late, what is exposed
explanation.py   one page about a run or a study: where the time goes, who is slow, what would help;
                 one run in detail: whether its laps add up, who was late, and which steps stalled
"""
