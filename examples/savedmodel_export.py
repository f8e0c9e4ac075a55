"""Trains compressed, then saves and serves the model where tf_comptrain does not exist.

    python examples/savedmodel_export.py --out served

`compress_model` leaves no trace in a file: `.keras`, `.weights.h5` and SavedModel are stock Keras.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from tensorflow import keras

import tf_comptrain as ct

# Runs in another process, in which importing this package fails.
_SERVE = """
import os, sys
sys.modules["tf_comptrain"] = None
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
folder = sys.argv[1]
images = np.load(f"{folder}/images.npy")
loaded = tf.keras.models.load_model(f"{folder}/model.keras")
weights = tf.keras.models.clone_model(loaded)
weights.load_weights(f"{folder}/model.weights.h5")
archive = tf.saved_model.load(f"{folder}/saved_model")
with open(f"{folder}/saved_model/saved_model.pb", "rb") as file:
    proto = saved_model_pb2.SavedModel.FromString(file.read())
graph = proto.meta_graphs[0].graph_def
operations = {node.op for function in graph.library.function for node in function.node_def}
operations |= {node.op for node in graph.node}
if "Conv2D" not in operations or any("Comptrain" in name for name in operations):
    sys.exit("The SavedModel holds codec ops, or nothing at all.")
np.savez(
    f"{folder}/predictions.npz",
    keras=loaded.predict(images, verbose=0),
    weights=weights.predict(images, verbose=0),
    served=archive.serve(images).numpy(),
)
"""


def small_network() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, activation="softmax"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2000, help="training images (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("demo_out/served"))
    args = parser.parse_args()

    with np.load(Path(__file__).parent / "data" / "fashion_mnist.npz") as file:
        x = file["x_train"][: args.images, ..., None].astype("float32") / 255
        y = file["y_train"][: args.images].astype("int32")

    model = small_network()
    ct.compress_model(model)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, batch_size=50, verbose=2)

    # No restore_model needed: outside of training an instrumented layer is plain Keras.
    args.out.mkdir(parents=True, exist_ok=True)
    model.save(args.out / "model.keras")
    model.save_weights(args.out / "model.weights.h5")
    model.export(args.out / "saved_model", verbose=False)
    images = x[:16]
    np.save(args.out / "images.npy", images)
    expected = model.predict(images, verbose=0)

    subprocess.run([sys.executable, "-c", _SERVE, str(args.out)], check=True)
    with np.load(args.out / "predictions.npz") as predictions:
        for name in ("keras", "weights", "served"):
            difference = float(np.abs(predictions[name] - expected).max())
            print(f"{name}: largest difference from the trained model's predictions {difference:g}")
            if difference > 1e-6:
                raise SystemExit(f"The {name} model predicts something else.")


if __name__ == "__main__":
    main()
