"""Figures and the page a study ends in: they draw and write what the analysis found, and compute nothing.

    kit        what everything is drawn with; imports no figure and no page
    grammar    figures, panels and layers as values, and the one way of drawing them
    figures    one file for each family of figures, and the catalogue of those of a study
    page       report.html with its script, the tables for print, the check of all of it
    explanation  what `horovod-study explain` shows, of steps and of commands without any
    against    what `horovod-study report --against` shows
    terminal   tables of other verbs: laws, account, attribution, timeline, traces, timers, equality
    export     traces, trackers, Extra-P, and a study as one file to publish

matplotlib is imported here and nowhere else.
"""
