"""Where the tensors of a model's traced steps are held: what is wished for them, streams, states, statistics."""
