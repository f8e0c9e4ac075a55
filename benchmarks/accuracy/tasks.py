"""What is trained, and how: tasks, and the arms that each is trained by."""

from __future__ import annotations

from typing import Any, NamedTuple

from sequential import Look, Rule

PLAIN = "plain"
# Of arms.ARMS, in the order in which they are trained, with what is to be decided first in front.
ARM_NAMES = (
    PLAIN,
    "default",
    "lossless",
    "adaptive",
    "group-4bit",
    "dither-0.25",
    "undithered-0.1",
    "undithered-0.25",
    "dither-0.35",
    "dither-0.5",
    "group-2bit",
    "rans",
)


class Orders(NamedTuple):
    """Runs of a seed, which differ in the order of their data."""

    plain: int
    arm: int


class Task(NamedTuple):
    """A network, its data and how long it trains.

    Attributes:
      network: A key of `networks.BUILDERS`.
      data: "fashion", "cifar" or "text": which file.
      train: Images to train with, the first ones; of a text None, for its first nine tenths.
      epochs: Passes over them; of a text, times that `steps` are taken.
      batch: Images or passages a step.
      rate: Highest learning rate: linear warm-up over a tenth of the steps, then half a cosine to 0.
      averaged: The weights that are tested are the mean of those after each of so many last epochs.
      orders: Runs a seed.
      rule: When to stop. The margin is in points of accuracy; of a text in % of the validation loss.
      words: What it is, for the report.
      steps: Of a text, steps an epoch.
      context: Of a text, characters a passage.
      moved: Whether colour images are shifted and mirrored: few ones are learned in a few epochs where they are not.
      is_long: It is trained only when it is named.
      jit_compile: XLA compiles the step, of all arms.
    """

    network: str
    data: str
    train: int | None
    epochs: int
    batch: int
    rate: float
    averaged: int
    orders: Orders
    rule: Rule
    words: str
    steps: int = 0
    context: int = 0
    moved: bool = False
    is_long: bool = False
    jit_compile: bool = False

    @property
    def is_text(self) -> bool:
        return self.data == "text"

    def setting(self) -> dict[str, Any]:
        """What a run depends on: runs of another setting are of another task."""
        kept = (
            "network",
            "data",
            "train",
            "epochs",
            "batch",
            "rate",
            "averaged",
            "steps",
            "context",
            "moved",
        )
        engine = {"jit_compile": True} if self.jit_compile else {}
        return {**{name: getattr(self, name) for name in kept}, **engine}


_POINTS = Rule(margin=0.3, fewest=20)
_POINTS_OF_MORE = Rule(margin=0.3, fewest=30)
_POINTS_OF_TEN = Rule(margin=0.3, fewest=10, looks=(Look(5, 0.01), Look(10, 0.04)))
_LOSS = Rule(margin=0.1, fewest=5)
_TWICE = Orders(2, 2)
_ONCE = Orders(1, 1)

TASKS: dict[str, Task] = {
    "cnn-fashion": Task(
        "cnn3-grey", "fashion", 6_000, 8, 60, 0.05, 3, _ONCE, _POINTS,
        "three convolutions of 16, 32 and 64 filters, no normalization",
    ),
    "resnet-fashion": Task(
        "resnet8-grey", "fashion", 5_000, 8, 50, 0.03, 3, _ONCE, _POINTS,
        "ResNet-8 of 16, 32 and 64 filters whose first convolution has strides of 2",
    ),
    "cnn-cifar": Task(
        "cnn3-colour", "cifar", 5_000, 12, 50, 0.05, 3, _ONCE, _POINTS,
        "three convolutions of 16, 32 and 64 filters, no normalization",
    ),
    "resnet-cifar": Task(
        "resnet8-colour", "cifar", 5_000, 10, 50, 0.03, 3, _ONCE, _POINTS,
        "ResNet-8 of 16, 32 and 64 filters whose first convolution has strides of 2",
    ),
    "decoder": Task(
        "decoder", "text", None, 3, 8, 1e-3, 1, _ONCE, _LOSS,
        "3 layers of width 96, passages of 64 characters, dropout 0.1", steps=200, context=64,
    ),
    "alexnet-cifar": Task(
        "alexnet", "cifar", 10_000, 10, 50, 0.02, 3, _ONCE, _POINTS_OF_TEN,
        "AlexNet at a quarter of its filters, for 32 px", is_long=True,
    ),
    "vgg16-cifar": Task(
        "vgg16", "cifar", 10_000, 10, 50, 0.03, 3, _ONCE, _POINTS_OF_TEN,
        "VGG-16 with batch normalization at a quarter of its filters", is_long=True,
    ),
    "resnet18-cifar": Task(
        "resnet18", "cifar", 10_000, 10, 50, 0.03, 3, _ONCE, _POINTS_OF_TEN,
        "ResNet-18 at a quarter of its filters, for 32 px", is_long=True,
    ),
    "resnet50-cifar": Task(
        "resnet50", "cifar", 10_000, 10, 50, 0.03, 3, _ONCE, _POINTS_OF_TEN,
        "ResNet-50 at a quarter of its filters, for 32 px", is_long=True,
    ),
    "resnet20-cifar-long": Task(
        "resnet20", "cifar", 50_000, 160, 128, 0.1, 3, _TWICE, _POINTS,
        "ResNet-20", moved=True, is_long=True,
    ),
    "vgg-cifar-long": Task(
        "vgg", "cifar", 50_000, 120, 128, 0.05, 3, _TWICE, _POINTS,
        "six convolutions of 64 to 256 filters with batch normalization, two dense layers", moved=True, is_long=True,
    ),
}  # fmt: skip
# The same under XLA, for which `fit` compiles where there is one GPU.
TASKS |= {
    f"{name}-xla": TASKS[name]._replace(
        rule=TASKS[name].rule if TASKS[name].is_text else _POINTS_OF_MORE,
        is_long=True,
        jit_compile=True,
        words=f"as {name}, compiled by XLA",
    )
    for name in ("cnn-fashion", "resnet-fashion", "cnn-cifar", "resnet-cifar", "decoder")
}
