"""What a worker holds in memory and hands to collectives."""
