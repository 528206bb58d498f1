"""Questions that a reader asks of a study, one file each: its derivation, table, figures and findings."""
