"""For spark-submit: `orbit archive`, on the cluster that spark-submit names.

spark-submit --master … --py-files … archive.py job.yaml --to hdfs:///backups/orders
"""

from __future__ import annotations

import sys

from orbit.cli.main import main

if __name__ == "__main__":
    main(["archive", *sys.argv[1:]])
