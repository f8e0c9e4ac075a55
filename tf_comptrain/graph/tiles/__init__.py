"""What is wide inside and narrow at its ends runs tile after tile of its rows, and never exists whole."""
