"""What the machine did, can do and costs: network, sensors, energy, memory.

network.py    what a network can do, from measured collectives: bandwidths, latency and bandwidth as two numbers,
              the roofline
bench_files.py
              files that say what a network does: bench.json, and what nccl-tests, rccl-tests and OSU's osu_allreduce
              print
advice.py     data or model parallel? The arithmetic of memory, messages and time for one model on so many workers
resources.py  what training costs: energy per sample and worker hours of every cell, and how these grow with the
              workers
system.py     what the sensors of a run's hosts say: the phases of the run, means and maxima, missed samples, doubts
usage.py      what the machine did while it trained: use and power of GPUs, of cores, memory, against workers and
              over time
"""
