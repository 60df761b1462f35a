"""Runs one worker in this process and prints its answer as one JSON line (the last line of standard output)."""

import importlib
import importlib.metadata
import json
import os
import sys
import traceback


def _answer(request: dict) -> dict:
    here = os.path.dirname(os.path.abspath(__file__))
    if here not in sys.path:
        sys.path.insert(0, here)
    clock = importlib.import_module("timing").Clock(seconds=request["seconds"])
    try:
        answer = importlib.import_module(request["worker"]).measure(request, clock)
        return {**answer, "version": _version(request.get("distribution", request["package"]))}
    except ModuleNotFoundError as error:
        # Only the contender's own package counts as "not installed"; anything else missing is a fault to show.
        if error.name and error.name.split(".")[0] == request["package"]:
            return {"missing": request["package"]}
        raise


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    try:
        answer = _answer(json.loads(sys.argv[1]))
    except Exception as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
