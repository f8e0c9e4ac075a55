"""`tf-comptrain calibrate`: what codecs and memory take on this machine."""

from __future__ import annotations

import argparse

from tf_comptrain.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `main`."""
    parser.add_argument("--renew", action="store_true", help="measure also where the machine is known")
    options.add_json(parser, "what `plan --hardware` reads")
    parser.set_defaults(function=main)


def main(args: argparse.Namespace) -> int:
    """Prints what this machine was measured to take."""
    from tf_comptrain import model_planning
    from tf_comptrain.model_planning import costs

    hardware = model_planning.calibrate(renew=args.renew)
    if args.json:
        print(hardware.to_json())
        return 0
    print(costs.costs_as_text(hardware))
    print(f"in {model_planning.cache_path()}")
    return 0
