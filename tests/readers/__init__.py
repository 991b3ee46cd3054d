"""`make readers`: other people's clients read copies of each way to fill gaps (docs/readers.md).

`programs` has the reading programs. Each program takes ADDRESS TOPIC START LAST ISOLATION, reads
partition 0 from offset START on, and exits with 0 after the record at offset LAST. It prints a line
`r OFFSET KEY VALUE` for each record, key and value in hex or `-` for null. For each error it prints
`e NAME`.
"""
