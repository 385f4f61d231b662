"""Two configurations, and two studies, compared.

comparison.py        two configurations block by block: which is faster, by how much, and whether the runs can tell
study_comparison.py  two studies cell by cell: what is faster or slower after a change or on another cluster
"""
