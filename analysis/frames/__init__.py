"""Records -> frames. The only readers of records: everything above asks a Results (results.py) for its frames."""
