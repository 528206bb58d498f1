"""Exits with 0 and leaves no report."""

print("all is well")
