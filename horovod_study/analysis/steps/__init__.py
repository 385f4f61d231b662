"""Where the time of a step goes: accounts of recorded steps, of ranks and of single runs."""
