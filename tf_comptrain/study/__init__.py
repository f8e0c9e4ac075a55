"""What compression does to a network of one's own: measured, as a table, and the policy that fits it best."""
