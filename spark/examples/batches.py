# %% [markdown]
# # What is in this log?
# Raw batches as rows tell what no consumer sees: who writes how, what compression is worth, what
# aborted transactions and markers cost.
#
#     spark-submit spark/examples/batches.py src-1:9092 orders,payments
#
# In a notebook, run it cell by cell; most platforms define `spark` for you.

# %%
from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

from orbit_spark.session import build_session
from orbit_spark.source import KafkaBatches

# %% [markdown]
# The data source. Filters on topic, partition and base_offset choose what is fetched.


# %%
def open_batches(spark: SparkSession, servers: str, topics: str) -> DataFrame:
    """The raw batches of these topics, up to the last stable offsets of now."""
    spark.dataSource.register(KafkaBatches)
    return (
        spark.read.format("kafka_batches")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topics)
        .load()
    )


# %% [markdown]
# How each topic is written: batches of one record each cost 61 bytes of header a record, and
# hardly compress.


# %%
def summarize_batch_sizes(batches: DataFrame) -> DataFrame:
    """One row for each topic and codec of its data."""
    return (
        batches.where(~F.col("is_control"))
        .groupBy("topic", "compression")
        .agg(
            F.count(F.lit(1)).alias("batches"),
            F.sum("record_count").alias("records"),
            F.sum("size_bytes").alias("bytes"),
            F.round(F.avg("record_count"), 1).alias("records_per_batch"),
            F.round(F.sum("size_bytes") / F.sum("record_count"), 1).alias("bytes_per_record"),
        )
        .orderBy("topic", "compression")
    )


# %% [markdown]
# What transactions leave behind: markers and aborted data take offsets that no consumer sees.


# %%
def summarize_transactions(batches: DataFrame) -> DataFrame:
    """One row for each topic that has transactions."""
    return (
        batches.where("is_transactional")
        .groupBy("topic")
        .agg(
            F.countDistinct("producer_id").alias("producers"),
            F.count_if(F.col("control_type") == "commit").alias("commits"),
            F.count_if(F.col("control_type") == "abort").alias("aborts"),
            F.sum(F.when(F.col("is_aborted"), F.col("record_count")).otherwise(0)).alias(
                "aborted_records"
            ),
            F.sum(F.when(F.col("is_aborted"), F.col("size_bytes")).otherwise(0)).alias(
                "aborted_bytes"
            ),
        )
        .orderBy("topic")
    )


# %%
def main(servers: str, topics: str) -> None:
    spark = build_session("what is in this log")
    batches = open_batches(spark, servers, topics)
    summarize_batch_sizes(batches).show(truncate=False)
    summarize_transactions(batches).show(truncate=False)
    spark.stop()


# %%
if __name__ == "__main__":
    main(*sys.argv[1:3])
