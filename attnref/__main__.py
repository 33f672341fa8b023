"""python -m attnref: the command line of the package."""

import argparse
import sys
from collections.abc import Sequence

from attnref.commands import copy, kv


def main(arguments: Sequence[str]) -> str:
    top = argparse.ArgumentParser(prog="python -m attnref")
    commands = top.add_subparsers(required=True, metavar="command")
    kv.add_to(commands)
    copy.add_to(commands)
    asked = top.parse_args(arguments)
    try:
        return str(asked.run(asked))
    except ValueError as error:
        asked.fail(str(error))  # which ends the program
        raise


if __name__ == "__main__":
    print(main(sys.argv[1:]))
