"""Where ranks run, and how they get there. What is run, and in which order, is said in `studies`.

alive       which processes run: the one rule for claims, runs and ranks
site        the hosts of a cell: this machine, hosts over ssh, or an allocation
allocations cells put into jobs, one per placement
launch      a cell, a Python and two paths in; an argument list and an environment out
process     ranks as a group of processes that can be waited for and stopped without leaving orphans
holding     processes that are stopped while they wait, and go on whatever happens to whoever stopped them
pinning     which cores a cell gets, and who else uses them
remote      commands on other hosts, bounded in time
reason      why ranks failed, in one line, from what they printed
identity    the code and the environment that distinguish cells beside their configuration
slurm       the script of a job as pure text
jobs        submitted jobs: what each was asked to run, and where it stands
doctor      what is wrong with this machine, other hosts, a partition, and what to do about it
"""
