"""The page a study ends in.

html        report.html, one file that needs nothing else: an answer and a list of sections (templates/, static/)
sentences   the analysis in words, and in a few lines for a terminal: numbers rounded to what they are worth
tables      the tables of a study for print: LaTeX and CSV; doubts, the worst first, each with what to type
check       page, figures and tables compared with the raw rows
"""
