"""Sharded data parallelism: optimiser state, gradients and weights split over the workers. Run as scripts, not imported."""
