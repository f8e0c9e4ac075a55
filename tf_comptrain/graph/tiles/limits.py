"""From where on tensors run by tiles, and how large a tile is."""

# A product is wide from so many times the length of the rows that it reads on, and so many bytes.
WIDER = 4
LEAST_BYTES = 16 << 20
# Operations on one number a row that stand between a loss and its gradient, at most.
MOST_BETWEEN = 100
# What a tile of the widest tensor takes. A few such tensors are alive at once, and each tile adds to
# whole gradients of weights: smaller ones take less memory, and more passes over these.
TILE_BYTES = 8 << 20
SUM_IN_TILES = 3  # a tile takes at least this part of the largest sum that it adds to
