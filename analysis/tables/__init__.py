"""Frames and what was concluded from them, as readable tables with notes; in the terminal, too."""
