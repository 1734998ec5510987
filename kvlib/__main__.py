"""`python -m kvlib COMMAND`: a thin command line over the laboratory."""

import argparse
import importlib
import sys

COMMANDS = {
    "animate": ("animate", "a moving picture of the cache: query, keys, values and attention"),
    "bench": ("bench", "time to first token, per token and throughput, by batch and cache"),
    "generate": ("generate", "continue a prompt, printing text as it streams"),
    "memory": ("bill", "what a model, a context and a batch need in memory, and what fits"),
    "parity": ("parity", "check that a cached decoder is the same function as its model"),
    "train": ("train", "train a small GPT-2 from public-domain text"),
}


def main(argv: list[str] | None = None) -> int:
    """Exit status of one command: 0 for success, 1 where a check failed, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m kvlib", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, help_text) in COMMANDS.items():
        commands.add_parser(name, help=help_text, add_help=False)
    args, rest = parser.parse_known_args(argv)
    module, help_text = COMMANDS[args.command]
    lab = importlib.import_module(f"kvlib.{module}")
    command = argparse.ArgumentParser(prog=f"python -m kvlib {args.command}", description=help_text)
    lab.add_arguments(command)
    try:
        return lab.main(command.parse_args(rest)) or 0
    except (ValueError, IndexError, OSError) as error:
        print(f"{command.prog}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
