"""The page a study ends in.

html        report.html, one file that needs nothing else: an answer and a list of sections (templates/, static/)
tables      the tables of a study for print, LaTeX and CSV; doubts, the worst first; the analysis in sentences
check       page, figures and tables compared with the raw rows
"""
