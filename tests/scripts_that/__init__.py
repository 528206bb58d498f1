"""Scripts that misbehave, one way each; the sweep runs them as if they were a framework's."""
