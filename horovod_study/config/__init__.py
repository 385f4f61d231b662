"""What is asked for, and the doors through which it comes in.

options       the command line of a workload
roles         an option: what it may be, and what it is to a study
run           the options of how a run communicates, is measured and placed; --require; cells and placements
workload      a training as studies know it
scripted      anybody's script or command as a workload
study_file    what the files of studies and searches may say
partitions    what a node is and how work gets there, from YAML files
schemas       what all these may say, for editors
doors         forms of what comes from outside, and the one text of what is wrong with it
documents     the one reader of JSON, YAML and small CSV files
variables     the one reader of numbers in environment variables
limits        what the system refuses, as one line
"""
