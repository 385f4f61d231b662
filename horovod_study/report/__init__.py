"""Figures and the page a study ends in: they draw and write what the analysis found, and compute nothing.

    kit        what everything looks like and is written with; imports no figure and no page
    grammar    figures, panels and layers as values, the one way of drawing them, and figures inside a page
    figures    one file for each family of figures, and the catalogue of those of a study
    page       report.html with its script, the tables for print, the check of all of it
    against    what `horovod-study report --against` shows
    terminal   what `horovod-study explain` shows, and tables of other verbs: laws, timers, equality
    export     traces, trackers, Extra-P, a section of a thesis, and a study as one file to publish

matplotlib is imported here and nowhere else.
"""
