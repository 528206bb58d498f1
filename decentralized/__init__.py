"""Peers that find each other, without a rank that all wait for. Run as scripts, not imported."""
