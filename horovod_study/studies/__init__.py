"""What is run, in which order, and where it stands: from the cells of a study to finished run directories.

docs/studies.md says what is in the folder of a study; each module begins with what it does.
"""
