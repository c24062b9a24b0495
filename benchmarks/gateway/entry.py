"""The scripted entry in a process of its own, as fast as it can, until its standard input is closed."""

import sys

from tests.fakes.triton_entry.script import Pace
from tests.fakes.triton_entry.server import scripted_entry

if __name__ == "__main__":
    with scripted_entry(pace=Pace(0, 0, 0)) as entry:
        print(entry.grpc_url, flush=True)
        sys.stdin.read()
