"""The analysis from a command line: options, messages, exit codes. pandas is loaded when a command runs."""
