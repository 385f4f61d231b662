"""The figures: values that can be drawn at any width (report.grammar), one file for each family, and their catalogue.

Of a study: scaling, waiting, convergence, causes; of one verb: bench. Everything drawn is a column of the analysis.
"""
