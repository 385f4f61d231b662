"""Numbers as readers see them; both wings and the command line may import it.

numbers   how many digits a number is worth, units, counts
"""
