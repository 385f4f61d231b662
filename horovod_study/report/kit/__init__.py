"""What figures and pages are made with; nothing here knows one of them.

style         fonts, sizes, the colour, marker and dash of every series and of every part of a step
panels        grids of panels, axes of worker counts, legends, points with their spread, node boundaries; figures inside
              a page: inline SVG, and what the page's script has to know of it
files         figures and texts of one result, written into one folder; figures as PGF; tables as LaTeX, CSV and HTML
"""
