"""What is known of a step before any pass."""

from toy import dense, toy


def test_forward_and_backward_pass_are_told_apart():
    with toy(dense) as toy_step:
        step, h = toy_step.step, toy_step.tensors["h"]
        gradient = toy_step.op("ReluGrad")
        assert not step.is_late(h.op) and step.is_late(gradient)
        assert step.made_at(h.op) == step.places[h.op.name]
        assert step.made_at(gradient) < step.backward.start


def test_what_a_product_follows_is_not_needed_at_once():
    with toy(dense) as toy_step:
        product = next(op for op in toy_step.ops("MatMul") if op.inputs[0] is toy_step.tensors["h"])
        assert not toy_step.step.is_needed_at_once(toy_step.tensors["h"])
        assert toy_step.step.is_needed_at_once(product.outputs[0])
