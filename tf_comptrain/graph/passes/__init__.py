"""The rewiring of a traced step as passes, each a function of data in a file of its own; `graph.rewire` runs them."""
