"""What compression does to the U-Net of nowcast.py: the file that a study takes.

tf-comptrain study examples/climate/study_rain.py --no-trainings
"""

import radar
import unet

STUDY = {
    "codecs": ["plane", "rans", "zvc"],
    "bounds": (0.05, 0.1, 0.2, 0.4, 0.8),
    "epochs": 1,
    "batch_size": 16,
}

TILE = 128


def build():
    """The network, compiled."""
    return unet.compiled(unet.unet(TILE), steps=1000)


def data():
    """((x, y), (x_validation, y_validation))"""
    return tuple(radar.tiles(radar.load(radar.SHIPPED, part), TILE) for part in ("train", "test"))
