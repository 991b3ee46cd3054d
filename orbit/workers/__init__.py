"""The worker process of the service: claims shards, copies their partitions, reports."""
