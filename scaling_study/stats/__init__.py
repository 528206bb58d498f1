"""Statistics of measurements: intervals, and the cost model of a network. Pure."""
