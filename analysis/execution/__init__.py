"""How work is run: several processes, no search for garbage meanwhile, parts that may be lost, files written whole."""
