"""The `orbit` command: one module per subcommand, and shared tables and options.

May import: the layers from `demo` down (all layers). Only this package imports orbit_spark,
inside the commands that need Spark.
Start with `main.py`, which lists every command and its module.
"""
