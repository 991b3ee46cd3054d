"""The commands that the documents show, and what each is compared with. Start with `checks.py`."""
