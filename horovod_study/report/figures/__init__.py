"""The figures, one file for each family; each is a value that can be drawn at any width (report.grammar)."""
