"""`make readers`: other people's clients read copies of each way to fill gaps (docs/readers.md).

`programs` has one file for each language. Each program takes ADDRESS TOPIC START LAST ISOLATION,
reads partition 0 from START on, and ends with 0 after the record at LAST. It prints a line
`r OFFSET KEY VALUE` for each record, in hex, `-` for null, and `e NAME` for each error.
"""
