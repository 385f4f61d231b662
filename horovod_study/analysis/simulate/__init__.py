"""What a data-parallel step would take on other workers, another network, or with other settings.

    network.py       a described network, and what an all-reduce costs on it, described or measured
    scaling.py       one step, and a scenario over worker counts, with intervals, doubts and what-ifs
    calibration.py   the constants of a scenario, from recorded runs and from what `horovod-study bench` measured

docs/predict.md says what is in the model and what is not; docs/metrics.md has the formulas.
"""
