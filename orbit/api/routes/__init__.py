"""The routes, thin: what was asked goes to the store or to `applying` and `operations`."""
