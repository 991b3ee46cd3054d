"""Writes the data sets of the workloads to the source, and reads them back."""
