"""What a data-parallel step would take on other workers, another network, or with other settings.

    network.py       a described network, and what an all-reduce costs on it: latency plus seconds per byte
    allreduce.py     what measured all-reduces say about more workers
    step.py          one step: computing, the slowest of N, buckets with overlap, cycle, negotiation, all-reduce
    scaling.py       a scenario over worker counts, strong or weak, with intervals, and the doubts about it
    what_if.py       words such as `bandwidth=2x,cycle=0` and what they change in a scenario
    calibration.py   the constants of a scenario, from recorded runs and from what `horovod-study bench` measured

docs/simulate.md says what is in the model and what is not; docs/metrics.md has the formulas.
"""
