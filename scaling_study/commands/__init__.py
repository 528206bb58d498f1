"""The commands of `scaling-study`: from the words of a command line to a plan, a sweep and an exit code."""
