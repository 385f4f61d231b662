"""What was learned: errors against epochs, samples and seconds.

convergence.py  what the test error did against epochs, samples and seconds, and how soon a target was met
lr_range.py     the learning-rate range test: where the loss falls fastest while the rate rises, and where it diverges
"""
