"""What is asked of TensorFlow for the engine that runs a step."""

import pytest
import tensorflow as tf

from tf_comptrain.storage import Engine, keep_layouts

GPU_EXECUTOR = Engine(xla=False, eager=False, device="GPU")


@pytest.fixture
def options():
    """The options of TensorFlow's optimizer; afterwards they are what they were, but for one that was not set."""
    before = tf.config.optimizer.get_experimental_options()
    yield tf.config.optimizer.get_experimental_options
    tf.config.optimizer.set_experimental_options({"layout_optimizer": True, **before})


def test_tensors_stay_channels_last_where_the_executor_of_a_gpu_runs_a_step(options):
    if "layout_optimizer" in options():
        pytest.skip("the option is set in this process")
    keep_layouts(Engine(xla=True, eager=False, device="GPU"))
    keep_layouts(Engine(xla=False, eager=False, device="CPU"))
    assert "layout_optimizer" not in options()
    keep_layouts(GPU_EXECUTOR)
    assert options()["layout_optimizer"] is False


def test_what_the_user_has_set_stays(options):
    tf.config.optimizer.set_experimental_options({"layout_optimizer": True})
    keep_layouts(GPU_EXECUTOR)
    assert options()["layout_optimizer"] is True
