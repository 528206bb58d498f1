"""Results on disk: what was asked and what came of it, written so that nothing half-written is ever believed."""
