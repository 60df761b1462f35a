"""`python -m benchmarks.checks '{"section": "parity", "device": "cuda:0", ...}'`: runs one section in this process."""

import importlib
import json
import sys
import traceback

from benchmarks.checks import Report, Skip, one_line


def main(text: str) -> int:
    """0: the section ran to its end, whatever it found; 3: it cannot run here; 1: it crashed."""
    request = json.loads(text)
    try:
        importlib.import_module(f"benchmarks.checks.{request['section']}").run(request, Report())
    except (Skip, ModuleNotFoundError) as error:
        print(one_line(error), file=sys.stderr)
        return 3
    except Exception as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
