"""Fits of laws to points.

form.py           what a law says: curve, bounds, peak, knee; places of points
rows.py           rows of points, checked and gathered
least_squares.py  the one fitter: a law, the rows of series -> parameters
intervals.py      what is known of the parameters, from repeats, residuals and profiles
doubts.py         what speaks against a fitted law
fitting.py        points -> fitted laws with 95 % intervals, the law selected, and every reason to doubt it
"""
