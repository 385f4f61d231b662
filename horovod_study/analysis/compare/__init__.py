"""Two configurations compared.

comparison.py  two configurations block by block: which is faster, by how much, and whether the runs can tell
"""
