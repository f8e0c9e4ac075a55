"""How results are shown: quantities and tables as text, HTML pages, plots; the same look everywhere.

rich and matplotlib are imported when something is drawn.
"""
