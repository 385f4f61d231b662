"""What a data-parallel step would take on other workers, another network, or with other settings.

docs/simulate.md says what is in the model and what is not; docs/metrics.md has the formulas.
"""
