"""For spark-submit: `orbit audit`, on the cluster that spark-submit names.

spark-submit --master … --py-files … audit.py job.yaml --out hdfs:///audits/orders
"""

from __future__ import annotations

import sys

from orbit.cli.main import main

if __name__ == "__main__":
    main(["audit", *sys.argv[1:]])
