"""A language model that is trained beside a frozen one: by preferences (DPO), or to predict as that one does."""

from __future__ import annotations

from typing import Any

import numpy as np
from hub_models import Sizes, language_model

TWO_MODELS = ("DPO", "distillation")
_BETA = 0.1


def beside_a_frozen_one(name: str, sizes: Sizes, batches: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """(model, tokens, zeros) with so many batches; compile the model with `mean_of_losses`.

    What it returns is the loss of each sample, or of each pair of them: for DPO a batch has half as many pairs.

    Reference:
      Rafailov et al., Direct preference optimization (2023); Hinton et al., Distilling the knowledge in a neural
      network (2015).
    """
    import tensorflow as tf
    from tensorflow import keras

    class Beside(keras.Model):
        def __init__(self):
            super().__init__()
            self.trained, *_ = language_model("Gemma", sizes, 1)
            self.frozen, *_ = language_model("Gemma", sizes, 1)
            self.frozen.trainable = False

        def call(self, tokens):
            tokens = tf.reshape(tokens, [-1, sizes.tokens])
            read = {"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}
            ours, theirs = (tf.nn.log_softmax(model(read)) for model in (self.trained, self.frozen))
            if name == "distillation":
                return tf.reduce_mean(tf.reduce_sum(tf.exp(theirs) * (theirs - ours), -1), -1)
            following = tf.roll(tokens, -1, 1)
            own, its = (tf.reduce_sum(tf.gather(z, following, batch_dims=2), -1) for z in (ours, theirs))
            chosen, rejected = tf.unstack(tf.reshape(own - its, [-1, 2]), axis=-1)
            return tf.math.softplus(-_BETA * (chosen - rejected))

    shape = (batches * sizes.batch, sizes.tokens)
    if name == "DPO":
        shape = (batches * sizes.batch // 2, 2, sizes.tokens)
    tokens = np.random.default_rng(0).integers(1, sizes.vocabulary, shape).astype("int32")
    model = Beside()
    model(tokens[:1])
    return model, tokens, np.zeros(len(tokens), "float32")


def mean_of_losses(zeros: Any, losses: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(losses)
