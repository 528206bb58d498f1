"""Processes of one host: started in one place, watched, ended whole; and what a killed one leaves behind."""
