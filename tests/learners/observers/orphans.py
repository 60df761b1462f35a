"""`python -m tests.learners.observers.orphans main|thread`: starts an observer, prints its number, waits to be killed."""

import sys
import threading
import time

from learners.observers.process import Observer


def start():
    observer = Observer("watcher", "tests.learners.observers.jobs", {"job": "versions"}, print)
    while not observer.wants:
        time.sleep(0.01)
    print(observer.pid, flush=True)
    time.sleep(600)


if sys.argv[1] == "thread":
    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join()
start()
