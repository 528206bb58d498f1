"""Layers over workers: each worker holds some stages of the model, and micro-batches pass through them."""
