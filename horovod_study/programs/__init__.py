"""Programs that ranks run and that are no training: each is started by `studies.bench.run_ranks`, and rank 0 answers.

answer       the answer of rank 0, and the end of all ranks at once
equality     trains by several ranks and alone, and compares: what `bench equality` judges
timers       what the timers of a run cost
microbench   all-reduces of all sizes over each runtime; what the processor, its memory and the GPU can do
script       a script of somebody else, with its training recorded, as a rank of a cell
loading      which loader bounds a run; it runs alone
"""
