"""One trial, run: the framework's real launcher, a supervisor that outlives the driver, retries where they help."""
