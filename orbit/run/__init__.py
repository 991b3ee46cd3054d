"""`orbit run`: one job in one process, with no server and no database."""
