"""Throughput of worker counts that were not measured, how such forecasts did, and what they recommend.

prediction.py      forecast other worker counts and batches, with intervals that widen with distance
holdout.py         forecasts scored like forecasts: the largest worker counts are hidden and forecast
recommendation.py  how many workers? Answers from a forecast curve; what to measure next; what a study forecasts
"""
