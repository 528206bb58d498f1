"""What this project claims about itself, measured anew by one command: `python -m benchmarks` (`make bench`)."""
