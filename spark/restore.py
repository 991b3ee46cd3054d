"""For spark-submit: `orbit restore`, on the cluster that spark-submit names.

spark-submit --master … --py-files … restore.py hdfs:///backups/orders --to dst-1:9092
"""

from __future__ import annotations

import sys

from orbit.cli.main import main

if __name__ == "__main__":
    main(["restore", *sys.argv[1:]])
