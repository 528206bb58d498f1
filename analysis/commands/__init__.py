"""python -m analysis COMMAND: one module each."""
