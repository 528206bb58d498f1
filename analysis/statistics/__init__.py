"""How sure a number is, and which configurations may be compared: frames -> intervals and ranks."""
