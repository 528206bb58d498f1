"""One process, and torch's own data parallelism. Run as scripts, not imported."""
