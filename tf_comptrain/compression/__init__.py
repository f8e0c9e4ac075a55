"""Models that train with their saved activations held compressed: what is done to them, and the report of it."""
