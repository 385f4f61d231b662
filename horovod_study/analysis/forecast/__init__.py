"""Throughput of worker counts that were not measured, how such forecasts did, and what they recommend.

prediction.py      forecast other worker counts and batches, with intervals; forecasts of hidden counts, scored
recommendation.py  how many workers? Answers from a forecast curve; what to measure next; what a study forecasts
"""
