"""Where ranks run, and how they get there. What is run, and in which order, is said in `studies`.

alive       which processes run: the one rule for claims, runs and ranks
launch      where the ranks of a cell go; a cell, a Python and two paths in, an argument list and an environment out
process     ranks as a group of processes that can be waited for, stopped without leaving orphans, and held; their
            cores, and who else uses these
remote      commands on other hosts, bounded in time
identity    the code and the environment that distinguish cells beside their configuration
slurm       cells put into jobs, one per placement; the script of a job as pure text; where submitted jobs stand
doctor      what is wrong with this machine, other hosts, a partition, and what to do about it
"""
