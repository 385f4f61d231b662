"""Throughput of worker counts that were not measured, how such forecasts did, and what they recommend.

trends.py          laws as a forecast combines them: per-worker throughput against workers and nodes, weighted by
                   what they predicted
prediction.py      forecast the throughput of worker counts that were not measured, with intervals that widen with
                   distance
batch_size.py      steps of other batch sizes: what a batch per worker that changes with the scale does to a
                   forecast
holdout.py         forecasts scored like forecasts: the largest worker counts are hidden, forecast from the smaller
                   ones, and compared
recommendation.py  how many workers? Answers from a forecast curve, each with a 95 % interval and with what makes it
                   doubtful
next_runs.py       which worker counts narrow a forecast most per GPU hour
study_forecast.py  what a study forecasts: throughput beyond its largest worker count, how such forecasts did, how
                   many workers to take
"""
