"""Scripts that train wrongly, one way each, and one that does not; the parity gate has to tell them apart."""
