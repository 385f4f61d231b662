"""What a data-parallel step would take on other workers, another network, or with other settings.

    scaling.py       a described network and its all-reduce; a scenario over worker counts, with doubts and what-ifs
    calibration.py   the constants of a scenario, from recorded runs and from what `horovod-study bench` measured

docs/predict.md says what is in the model and what is not; docs/metrics.md has the formulas.
"""
