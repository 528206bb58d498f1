"""Other machines: which may be used, how each is reached, and the agents that keep order there."""
