"""The regression net: what the program says of the shipped studies, and the ids of all trials, frozen."""
