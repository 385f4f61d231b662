"""Two configurations compared.

comparison.py  two configurations, or ways to measure, block by block: which is faster, and whether the runs can tell
"""
