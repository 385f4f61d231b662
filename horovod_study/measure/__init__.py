"""Clocks and probes: clock (the only reader of time), environment (what the run ran on)."""
