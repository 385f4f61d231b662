"""What readers see in letters; both wings and the command line may import it.

numbers   how many digits a number is worth, units, signs
words     counts with their nouns, lists, names from files
tables    a table as a value, and its lines in a terminal
progress  what is said while something long goes on
"""
