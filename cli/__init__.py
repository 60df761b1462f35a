"""The `gpurl` command line: parses, calls `learners` and `gpuenvs`, prints."""
