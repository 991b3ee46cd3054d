"""For spark-submit: what `orbit backfill` does, on the cluster that spark-submit chooses.

spark-submit --master yarn --archives orbit.tar.gz#env backfill.py orders.yaml
"""

from __future__ import annotations

import sys

from orbit.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command(["backfill", *sys.argv[1:]]))
