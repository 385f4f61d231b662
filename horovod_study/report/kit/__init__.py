"""What figures and pages are made with; nothing here knows one of them.

style         fonts, sizes, the colour, marker and dash of every series and of every part of a step
files         figures and texts of one result, written into one folder; tables as LaTeX, CSV and HTML
"""
