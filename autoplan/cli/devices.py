"""``autoplan devices``: the devices and networks that are known."""

import argparse

from autoplan.cluster import catalog_text, figures_text


def devices_command(options: argparse.Namespace) -> None:
    print(figures_text(options.name) if options.name else catalog_text(), end="")
