"""How tables and figures look: layouts, notes under tables, styles of figures."""
