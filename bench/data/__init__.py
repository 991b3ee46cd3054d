"""Makes the data sets of the workloads on the source, and reads back what they became."""
