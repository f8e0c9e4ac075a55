"""What is held by the default rule, and where an error of it goes."""

from toy import dense, smooth, toy


def test_an_error_of_what_a_product_reads_ends_in_the_weights():
    with toy(dense) as step:
        h = step.tensors["h"]
        (kernel,) = step.chosen.kernels[h.ref()]
        assert kernel.op.type == "MatMul" and kernel.gradient.shape == (64, 64)
        assert step.chosen.ends(h.ref())


def test_an_error_of_an_argument_travels_on():
    with toy(smooth) as step:
        saved = step.chosen.choice.saved
        assert step.tensors["a"].ref() in saved and step.tensors["h"].ref() not in saved
        assert not step.chosen.ends(step.tensors["a"].ref())


def test_of_a_recorded_pass_no_gradient_is_a_kernels_alone():
    with toy(dense, recorded=True) as step:
        assert step.chosen.kernels == {}
