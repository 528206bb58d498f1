"""Sharded data parallelism: optimiser state, gradients and weights split over workers. Scripts, not imported."""
