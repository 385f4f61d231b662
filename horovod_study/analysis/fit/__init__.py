"""Fits of laws to points.

rows.py           rows of points, checked and gathered
least_squares.py  what a law says: curve, bounds, peak, knee; the one fitter: a law, the rows of series -> parameters
intervals.py      what is known of the parameters, from repeats, residuals and profiles; what speaks against them
fitting.py        points -> fitted laws with 95 % intervals, the law selected, and every reason to doubt it
"""
