"""What compression does to the classifier of classify.py on generated events: the file that a study takes.

tf-comptrain study examples/hep/study_events.py --no-trainings
"""

import classify
import detectors

STUDY = {
    "codecs": ["plane", "rans", "zvc"],
    "bounds": (0.05, 0.1, 0.2, 0.4, 0.8),
    "epochs": 2,
    "batch_size": 32,
}

_EVENTS = detectors.generated("calorimeter", 1536, 1000)


def build():
    """The network, compiled."""
    return classify.compiled(classify.classifier(_EVENTS.x.shape[1:], width=8))


def data():
    """((x, y), (x_validation, y_validation))"""
    return (_EVENTS.x, _EVENTS.y), (_EVENTS.x_test, _EVENTS.y_test)
