"""Matrices or sequences that workers share. Run as scripts, not imported."""
