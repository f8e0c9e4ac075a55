"""Tiles of wide layers, smaller than usual: a choice of a plan for a limit that no other plan keeps."""

from __future__ import annotations

import tensorflow as tf

from tf_comptrain.graph.tiles.limits import tile_sizes
from tf_comptrain.graph.tiles.starts import has_wide_products
from tf_comptrain.storage import engine_of_model

# More layers run by tiles then, and what these hold is made again. Still smaller ones gain little.
SMALLER_TILES = 4


def runs_by_smaller_tiles(graph: tf.Graph, xla: bool) -> bool:
    """Whether a step has layers wide enough for them."""
    on_gpu = engine_of_model(xla=xla).is_for_gpu
    return has_wide_products(graph, tile_sizes(xla, on_gpu, SMALLER_TILES))
