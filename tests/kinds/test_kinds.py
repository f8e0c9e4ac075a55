"""Models as public examples write them train compressed as they do plain, whatever their step looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import adversarial
import numpy as np
import pytest
import sequences
import structures
import training_steps
import vision
from kind import Kind
from running import relative_difference, run

BATCH_NORM = 1e-3  # a kernel of this library sums in another order
WORTH_IT = 1_000_000  # saved bytes from which a gain is asked for


class Case(NamedTuple):
    """A kind, and what is expected of it.

    Attributes:
      make: Builds it.
      exact: Largest |g - g'| / |g'| of the first step with lossless streams.
      rounded: The same with the default codec. A gradient of zeros is 1 from any other.
      gain: Saved bytes of plain, where they are many, over those of the default codec.
    """

    make: Callable[[], Kind]
    exact: float = 1e-4
    rounded: float = 0.15
    gain: float = 4.0


CASES = {
    "DCGAN": Case(adversarial.dcgan, BATCH_NORM),
    "GAN of two tapes in turns": Case(adversarial.gan_in_fit_style),
    # TensorFlow sends zeros back through the critic's second run, which read what that made as it is.
    "WGAN with gradient penalty": Case(adversarial.wgan_gp, gain=3.0),
    "WGAN with gradient penalty, smooth": Case(adversarial.wgan_gp_smooth),
    "spectral normalization": Case(adversarial.spectral_normalization),
    "distillation": Case(adversarial.distillation),
    "actor-critic": Case(adversarial.actor_critic),
    "VAE": Case(vision.vae),
    "diffusion": Case(vision.diffusion),
    "SimCLR": Case(vision.simclr),
    "siamese": Case(vision.siamese),
    "triplet": Case(vision.triplet),
    "U-Net": Case(vision.unet, BATCH_NORM),
    "detector": Case(vision.detector),
    "style transfer": Case(vision.style_transfer),
    # The backward pass begins with the difference that the loss squares, which is kept.
    "tied autoencoder": Case(vision.tied_autoencoder, gain=1.9),
    "Conv3D": Case(vision.conv3d, BATCH_NORM),
    "vision transformer": Case(vision.vision_transformer),
    "NeRF": Case(vision.nerf),
    "CTC": Case(sequences.ctc),
    "seq2seq": Case(sequences.seq2seq),
    "masked language model": Case(sequences.masked_language_model),
    "tf.scan": Case(sequences.rnn_with_scan),
    "dilated TCN": Case(sequences.dilated_tcn),
    "recommender": Case(sequences.recommender),
    "mixture of experts": Case(sequences.mixture_of_experts),
    "attention pooling": Case(sequences.attention_pooling),
    "decoder with rotary positions": Case(sequences.gpt_with_rotary_positions),
    "graph attention": Case(structures.graph_attention),
    # The gradient of a maximum over a segment reads where it was.
    "message passing": Case(structures.message_passing, gain=2.5),
    # The gradient of a maximum divides by how many there are.
    "PointNet": Case(structures.pointnet, BATCH_NORM, gain=1.9),
    "normalizing flow": Case(structures.normalizing_flow),
    # What saturates has the bound of a nonlinear function.
    "physics-informed": Case(structures.physics_informed, gain=3.0),
    "score matching": Case(structures.score_matching),
    "accumulation": Case(training_steps.accumulation),
    "accumulation in a loop": Case(training_steps.accumulation_in_a_loop),
    "Reptile": Case(training_steps.reptile),
    "MAML": Case(training_steps.maml),
    "tf.recompute_grad": Case(training_steps.recompute_grad),
    "persistent tape": Case(training_steps.persistent_tape),
    "step in tf.cond": Case(training_steps.step_in_a_condition),
    "sharpness-aware": Case(training_steps.sharpness_aware),
    "gradients of inputs": Case(training_steps.input_gradients),
    "penalty on a Jacobian": Case(training_steps.jacobian_penalty),
}


SHORT = [
    "GAN of two tapes in turns", "VAE", "tf.scan", "accumulation", "persistent tape", "penalty on a Jacobian",
]  # fmt: skip


def test_every_kind_can_fail():
    """Tolerances that a gradient of zeros, or of another sign, would pass test nothing."""
    assert all(case.exact < 0.01 and case.rounded < 0.5 for case in CASES.values())


@pytest.mark.long(but=SHORT)
@pytest.mark.parametrize("name", CASES)
def test_a_kind_trains_compressed_as_it_does_plain(name):
    case = CASES[name]
    plain = run(case.make)
    exact = run(case.make, steps=1, codec="zvc")
    assert relative_difference(exact.gradients, plain.gradients) <= case.exact
    rounded = run(case.make, codec="plane")
    assert relative_difference(rounded.gradients, plain.gradients) <= case.rounded
    np.testing.assert_allclose(rounded.losses, plain.losses, rtol=0.05)
    if plain.saved_bytes > WORTH_IT:
        assert plain.saved_bytes >= case.gain * rounded.saved_bytes


def test_a_model_in_a_branch_and_its_tape_around_that():
    plain = run(training_steps.model_in_a_condition)
    exact = run(training_steps.model_in_a_condition, steps=1, codec="zvc")
    assert relative_difference(exact.gradients, plain.gradients) <= 1e-4
