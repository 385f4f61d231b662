"""What was learned.

convergence.py  what the test error did against epochs, samples and seconds; the learning-rate range test
"""
