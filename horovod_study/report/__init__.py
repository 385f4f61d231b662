"""Figures and the page a study ends in: they draw and write what the analysis found, and compute nothing.

    style      fonts, sizes, the colour, marker and dash of every series and of every part of a step
    figures    each figure as a value that can be drawn at any width; PDF, SVG, PNG, caption and data on disk
    wording    the analysis in words: sentences with numbers, rounded to what they are worth
    html       report.html, one file that needs nothing else

matplotlib is imported here and nowhere else.
"""
